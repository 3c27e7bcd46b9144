"""`kitchen check`: the plan as a tree, and every problem at once, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from kitchen.cli.commands.failure import as_json, reasons, tell
from kitchen.cli.console import console, table
from kitchen.config.adapters import PORT_TYPES, PORTS, adapter_class, required_ports
from kitchen.config.discovery import import_path
from kitchen.config.request import Problems, ResolvedRequest, RunRequest, resolve_request
from kitchen.config.yaml import yaml_value
from kitchen.engine.preview import preview
from kitchen.engine.type_names import read_names, return_names, short_name
from kitchen.errors import KitchenError
from kitchen.secrets import mask
from kitchen.stage import Stage
from kitchen.types import Price, Table
from kitchen.workflow import Every, ForEach, Parallel, Series, Step, When, walk


def check(
    request: RunRequest,
    *,
    json: bool,
    debug: bool,
    with_preview: bool,
    price: float | None = None,
    online: bool = False,
) -> int:
    """Returns 0, or the exit code that `kitchen run` would end with; asks nobody, unless it is to
    be `online`.
    """
    out = console(to_stderr=json)
    try:
        made = resolve_request(request)
    except KitchenError as error:
        tell(error, debug=debug)
        return _said(json, {"recipe": request.recipe, "problems": reasons(error)}, error.exit_code)
    if made.step is not None:
        out.print(tree(import_path(made.cls), made.step))
    _say_settings(out, made)
    used = _used(made)
    _say_adapters(out, made, used)
    for word in made.plan.not_honoured if made.plan else ():
        lacking = f"the training adapter {made.names['training']!r} does not list it"
        out.print(f"\nnot honoured: {word} ({lacking})", style="yellow")
    if online and not made.problems:
        _ask(out, made)
    if with_preview and not made.problems:
        _preview(out, made, {} if price is None else {Price: Price(price)})
    if made.problems:
        problems = Problems(made.problems)
        out.print()
        tell(problems, debug=debug)
    else:
        out.print("\nno problems", style="green")
        if not with_preview:
            out.print(
                "the rows of the data are not read here: --preview reads and shows them",
                style="dim",
            )
    code = problems.exit_code if made.problems else 0
    return _said(json, _summary(made, used), code)


def tree(title: str, step: Step) -> Tree:
    """The workflow, with what each stage reads and leaves."""
    root = Tree(Text(title, style="bold"))
    _grow(root, step)
    return root


def _grow(above: Tree, step: Step) -> None:
    match step:
        case Series(steps, leaves, title):
            under = above
            if leaves is not None:
                left = ", ".join(map(short_name, leaves)) or "nothing"
                under = above.add(Text.assemble(title or "phase", (f"  → {left}", "dim")))
            for inner in steps:
                _grow(under, inner)
        case ForEach(source, body, ahead, save, stale):
            words = [
                f"{word} {value}"
                for word, value in (("ahead", ahead), ("save every", save))
                if value
            ]
            words += [f"stale {', '.join(map(short_name, stale))}"] * bool(stale)
            under = above.add(
                Text.assemble(
                    "for each of ", _leaf(source), *((f"  {word}", "cyan") for word in words)
                )
            )
            _grow(under, body)
        case When(condition, body):
            shown = (
                f"every {condition.n}"
                if isinstance(condition, Every)
                else Text.assemble("when ", _leaf(condition))
            )
            _grow(above.add(shown), body)
        case Parallel(branches):
            under = above.add("parallel")
            for branch in branches:
                _grow(under, branch)
        case Stage():
            above.add(_leaf(step))


def _leaf(stage: Stage) -> Text:
    contract = stage.contract()
    shown = Text(mask(str(stage).removesuffix("()")))
    reads = ", ".join(dict.fromkeys(read_names(contract)))
    outputs = ", ".join(dict.fromkeys(return_names(contract)))
    if reads or outputs:
        shown.append(f"  {reads}{' ' if reads else ''}→ {outputs or 'nothing'}", "dim")
    return shown


def _say_settings(out: Console, made: ResolvedRequest) -> None:
    changed = [(key, source) for key, source in made.sources.items() if source != "default"]
    if made.recipe is not None and changed:
        values = made.recipe.model_dump(mode="json")
        rows = tuple((key, yaml_value(_at(values, key)), source) for key, source in changed)
        out.print()
        out.print(table(Table("Settings that were given", ("setting", "value", "from"), rows)))


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else values
    return values


def _used(made: ResolvedRequest) -> Mapping[str, str]:
    """Port to who asks for it: the recipe's stages, or another adapter; blobs keep the record of
    every run.
    """
    wanted = {
        port: "the recipe"
        for port, kinds in PORT_TYPES.items()
        if made.plan and not made.plan.ports.isdisjoint(kinds)
    }
    for port in list(wanted):
        for other in _asked(made, port):
            wanted.setdefault(other, f"the {port} adapter")
    wanted.setdefault("blobs", "the run's record")
    return wanted


def _asked(made: ResolvedRequest, port: str) -> Iterator[str]:
    if made.kitchen is not None:
        yield from required_ports(adapter_class(port, made.names[port])).values()


def _say_adapters(out: Console, made: ResolvedRequest, used: Mapping[str, str]) -> None:
    rows = []
    for port in PORTS:
        given = ", ".join(
            f"{key}={yaml_value(value)}"
            for key, value in made.adapter_settings.get(port, {}).items()
        )
        rows.append((port, made.names.get(port, ""), given, used.get(port, "nobody")))
    out.print()
    out.print(table(Table("Adapters", ("port", "adapter", "with", "needed by"), tuple(rows))))


def _ask(out: Console, made: ResolvedRequest) -> None:
    """What the servers say of the models that are wanted of them."""
    training: Any = made.kitchen.training if made.kitchen else None
    stages = (
        [stage.without_roles() for stage in walk(made.step) if isinstance(stage, Stage)]
        if made.step
        else []
    )
    wanted = dict.fromkeys(str(stage.model) for stage in stages if hasattr(stage, "model"))
    out.print()
    if not hasattr(training, "online"):
        out.print(
            f"the training adapter {made.names['training']!r} is on this machine: there is nobody "
            "to ask"
        )
        return
    for model in wanted:
        with made.collecting():
            out.print(training.online(model), soft_wrap=True)


def _preview(out: Console, made: ResolvedRequest, given: Mapping[Any, Any]) -> None:
    if made.step is not None and made.kitchen is not None:
        with made.collecting():
            for shown in preview(made.step, {**made.kitchen.ports(), **given}):
                out.print()
                out.print(table(shown))


def _summary(made: ResolvedRequest, used: Mapping[str, str]) -> dict[str, Any]:
    return {
        "recipe": import_path(made.cls),
        "settings": made.recipe.model_dump(mode="json") if made.recipe else None,
        "sources": made.sources,
        "adapters": {port: made.names.get(port) for port in used},
        "plan": [str(line) for line in made.plan.lines] if made.plan else [],
        "not_honoured": made.plan.not_honoured if made.plan else [],
        "problems": [text for problem in made.problems for text in reasons(problem)],
    }


def _said(json: bool, summary: dict[str, Any], code: int) -> int:
    if json:
        print(as_json({**summary, "exit_code": code}))
    return code

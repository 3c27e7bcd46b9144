"""`kitchen check`: the plan as a tree, and every problem at once, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from kitchen.backend.probe_report import ProbeReport
from kitchen.cli.commands.errors import all_reasons, reasons, report_error
from kitchen.cli.commands.json_output import print_json
from kitchen.cli.commands.server_probe import (
    ask_servers,
    capabilities_source,
    models_elsewhere,
    models_of_servers,
    print_report,
    report_json,
)
from kitchen.cli.console import console, table
from kitchen.config.adapters import PORT_TYPES, PORTS, adapter_class, required_ports
from kitchen.config.discovery import import_path
from kitchen.config.order import adapter_rows, nested_value
from kitchen.config.request import Problems, ResolvedRequest, RunRequest, resolve_request
from kitchen.config.yaml import yaml_value
from kitchen.engine.preview import preview
from kitchen.engine.type_names import read_names, return_names, short_name
from kitchen.errors import KitchenError, exits_as_failures
from kitchen.secrets import printable
from kitchen.stage import Stage
from kitchen.types import Price, Table
from kitchen.workflow import Every, ForEach, Parallel, Series, Step, When


@dataclass(frozen=True)
class CheckOptions:
    """The options of `kitchen check`."""

    json: bool = False
    debug: bool = False
    preview: bool = False  # load the tokenizer and the data, and show what would be trained on
    price: float | None = None  # of a million tokens
    online: bool = False  # ask servers for the model, and try their features


def check(request: RunRequest, options: CheckOptions) -> int:
    """Return 0, or the exit code that `kitchen run` would end with.

    No server is contacted, except with the option `online`.
    """
    summary, code = _checked(request, options)
    if options.json:
        print_json({**summary, "exit_code": code})
    return code


def _checked(request: RunRequest, options: CheckOptions) -> tuple[Mapping[str, Any], int]:
    """Print the plan and the problems; return them for --json, and the exit code."""
    out = console(to_stderr=options.json)
    try:
        resolved = resolve_request(request)
    except KitchenError as error:
        report_error(error, debug=options.debug)
        return {"recipe": request.recipe, "problems": reasons(error)}, error.exit_code
    reports: list[ProbeReport] = []
    if options.online and _lacks_at_most_capabilities(resolved):
        reports = ask_servers(out, resolved)
    if reports:  # the plan depends on the capabilities that were found
        resolved = resolve_request(request)
    users = _users_of_ports(resolved)
    _print_plan(out, resolved, users)
    for report in reports:
        print_report(out, report)
    shown: list[Table] = []
    if options.preview and not resolved.problems:
        shown = _print_preview(out, resolved, options.price)
    tables = {"preview": [asdict(content) for content in shown]} if options.preview else {}
    code = _print_verdict(out, resolved, options)
    probes = {"probes": list(map(report_json, reports))} if options.online else {}
    return {**_summary(resolved, users), **tables, **probes}, code


def _lacks_at_most_capabilities(resolved: ResolvedRequest) -> bool:
    """Return whether all problems are those of the plan, some of which a probe may solve."""
    of_plan = resolved.plan.problems if resolved.plan else ()
    return {str(problem) for problem in resolved.problems} <= set(of_plan)


def _print_plan(out: Console, resolved: ResolvedRequest, users: Mapping[str, str]) -> None:
    if resolved.step is not None:
        out.print(workflow_tree(import_path(resolved.cls), resolved.step))
    _print_changed_settings(out, resolved)
    _print_adapters(out, resolved, users)
    for setting in resolved.plan.not_honoured if resolved.plan else ():
        if setting.startswith("loss "):
            out.print(f"\nnot known: {setting} (the server may have it; --online tries it)")
            continue
        reason = f"the training adapter {resolved.names['training']!r} does not support it"
        out.print(f"\nnot honoured: {setting} ({reason})", style="yellow")


def _print_verdict(out: Console, resolved: ResolvedRequest, options: CheckOptions) -> int:
    if resolved.problems:
        problems = Problems(resolved.problems)
        out.print()
        report_error(problems, debug=options.debug)
        return problems.exit_code
    out.print("\nno problems", style="green")
    if not options.preview:
        note = "the rows of the data are not read here: --preview reads and shows them"
        out.print(note, style="dim")
    if source := capabilities_source(resolved):
        out.print(source, style="dim", soft_wrap=True)
    if not options.online and (models := models_of_servers(resolved)):
        note = f"no server was asked whether it has {', '.join(models)}: --online asks"
        out.print(note, style="dim", soft_wrap=True)
    return 0


def workflow_tree(title: str, step: Step) -> Tree:
    """Return the workflow as a tree, with the types that each stage reads and returns."""
    root = Tree(Text(printable(title), style="bold"))
    _add_branch(root, step)
    return root


def _add_branch(parent: Tree, step: Step) -> None:
    match step:
        case Series():
            branch = _series_branch(parent, step)
            for inner in step.steps:
                _add_branch(branch, inner)
        case ForEach(_, body):
            _add_branch(parent.add(_loop_label(step)), body)
        case When(condition, body):
            label: str | Text = Text.assemble("when ", _stage_label(condition))
            if isinstance(condition, Every):
                label = f"every {condition.n}"
            _add_branch(parent.add(label), body)
        case Parallel(branches):
            branch = parent.add("parallel")
            for inner in branches:
                _add_branch(branch, inner)
        case Stage():
            parent.add(_stage_label(step))


def _series_branch(parent: Tree, series: Series) -> Tree:
    """Return a branch for a series with outputs; the steps of another one join the parent's."""
    if series.outputs is None:
        return parent
    names = ", ".join(map(short_name, series.outputs)) or "nothing"
    return parent.add(Text.assemble(series.title or "phase", (f"  → {names}", "dim")))


def _loop_label(loop: ForEach) -> Text:
    options = []
    if loop.ahead:
        options.append(f"ahead {loop.ahead}")
    if loop.save:
        options.append(f"save every {loop.save}")
    if loop.stale:
        options.append(f"stale {', '.join(map(short_name, loop.stale))}")
    parts = [(f"  {option}", "cyan") for option in options]
    return Text.assemble("for each of ", _stage_label(loop.source), *parts)


def _stage_label(stage: Stage) -> Text:
    contract = stage.contract()
    inputs = ", ".join(dict.fromkeys(read_names(contract)))
    outputs = ", ".join(dict.fromkeys(return_names(contract)))
    label = Text(printable(str(stage).removesuffix("()")))
    if inputs or outputs:
        label.append(f"  {inputs}{' ' if inputs else ''}→ {outputs or 'nothing'}", "dim")
    return label


def _print_changed_settings(out: Console, resolved: ResolvedRequest) -> None:
    sources = resolved.sources.items()
    changed = [(key, source) for key, source in sources if source != "default"]
    if resolved.recipe is None or not changed:
        return
    values = resolved.recipe.model_dump(mode="json")
    rows = [(key, yaml_value(nested_value(values, key)), source) for key, source in changed]
    out.print()
    out.print(table(Table("Changed settings", ("setting", "value", "from"), tuple(rows))))


def _users_of_ports(resolved: ResolvedRequest) -> Mapping[str, str]:
    """Return port to its user: the recipe's stages, another adapter, or the record of the run."""
    read = resolved.plan.ports if resolved.plan else frozenset()
    users = {port: "the recipe" for port, types in PORT_TYPES.items() if not read.isdisjoint(types)}
    if models_elsewhere(resolved):
        users["sampling"] = "the recipe"
    for port in list(users):
        for required in _ports_required_by(resolved, port):
            users.setdefault(required, f"the {port} adapter")
    users.setdefault("blobs", "the run's record")
    return users


def _ports_required_by(resolved: ResolvedRequest, port: str) -> Iterator[str]:
    if resolved.kitchen is not None:
        yield from required_ports(adapter_class(port, resolved.names[port])).values()


def _print_adapters(out: Console, resolved: ResolvedRequest, users: Mapping[str, str]) -> None:
    order = {
        "adapters": {port: resolved.names.get(port, "") for port in PORTS},
        "adapter_settings": resolved.adapter_settings,
        "adapter_sources": resolved.adapter_sources,
    }
    rows = [(*row, users.get(row[0], "nothing")) for row in adapter_rows(order)]
    out.print()
    out.print(table(Table("Adapters", ("port", "adapter", "settings", "needed by"), tuple(rows))))


def _print_preview(out: Console, resolved: ResolvedRequest, price: float | None) -> list[Table]:
    """Print the tables of the preview, up to the first error, and return them."""
    tables: list[Table] = []
    if resolved.step is None or resolved.kitchen is None:
        return tables
    inputs: dict[Any, Any] = dict(resolved.kitchen.ports())
    if price is not None:
        inputs[Price] = Price(price)
    with resolved.collecting(), exits_as_failures():
        for shown in preview(resolved.step, inputs):
            tables.append(shown)
            out.print()
            out.print(table(shown))
    return tables


def _summary(resolved: ResolvedRequest, users: Mapping[str, str]) -> dict[str, Any]:
    plan = resolved.plan
    return {
        "recipe": import_path(resolved.cls),
        "settings": resolved.recipe.model_dump(mode="json") if resolved.recipe else None,
        "sources": resolved.sources,
        "adapters": {port: resolved.names.get(port) for port in users},
        "adapter_settings": resolved.adapter_settings,
        "adapter_sources": resolved.adapter_sources,
        "plan": [str(line) for line in plan.lines] if plan else [],
        "not_honoured": plan.not_honoured if plan else [],
        "capabilities_source": capabilities_source(resolved),
        "problems": all_reasons(resolved.problems),
    }

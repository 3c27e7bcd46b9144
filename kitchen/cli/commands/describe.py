"""`kitchen describe`: the settings, stages and ports of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, takewhile
from textwrap import wrap

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from kitchen.cli.commands.check import workflow_tree
from kitchen.cli.commands.json_output import print_json
from kitchen.cli.console import WIDTH, console, print_wrapped, table
from kitchen.cli.streams import answers
from kitchen.config.adapters import DEFAULTS, PORT_TYPES
from kitchen.config.describe import SettingDescription, describe_settings
from kitchen.config.discovery import NotAStep, build_workflow, import_path
from kitchen.config.request import recipe_of
from kitchen.config.run_files import SUFFIXES
from kitchen.config.yaml import yaml_value
from kitchen.errors import ConfigError
from kitchen.recipe import Recipe
from kitchen.secrets import printable
from kitchen.stage import Stage
from kitchen.types import Table
from kitchen.workflow import Step, walk

_WIDTH = 100  # columns of the comments in a YAML file


def describe_recipe(name: str, *, json: bool, yaml: bool = False) -> int:
    """Print the description of a recipe; raises the error of `recipe_of`.

    With `yaml`, it is a YAML file of its settings.
    """
    if json and yaml:
        raise ConfigError("--json and --yaml are two forms of the description; choose one")
    cls = recipe_of(name)
    if yaml:
        recipe = import_path(cls) if name.endswith(SUFFIXES) else name
        print("\n".join(yaml_lines(recipe, cls)), file=answers())
        return 0
    docstring = (cls.__doc__ or "").strip()
    settings = list(describe_settings(cls))
    workflow, reason = _default_workflow(cls)
    stages = _stages(workflow)
    ports = _ports(stages)
    if json:
        description = {
            "recipe": import_path(cls),
            "about": docstring,
            "settings": [vars(setting) for setting in settings],
            "stages": list(dict.fromkeys(stage.title() for stage in stages)),
            "ports": ports,
        }
        print_json(description)
        return 0
    out = console()
    _print_heading(out, name, cls, docstring)
    print_settings(out, settings)
    out.print()
    if workflow is None:
        out.print(f"The stages need more than the default settings: {reason}", soft_wrap=True)
        out.print("Pass these settings to `kitchen check` to see the stages.")
    else:
        out.print(workflow_tree("Stages", workflow))
        out.print(f"\nPorts: {', '.join(ports)}")
    return 0


def _print_heading(out: Console, name: str, cls: type[Recipe], docstring: str) -> None:
    heading = Text.assemble((import_path(cls), "bold"), f"\n{docstring}" if docstring else "")
    out.print(heading, end="\n\n")
    if name.endswith(SUFFIXES):
        print_wrapped(
            out,
            "The values below are the defaults of the recipe; "
            f"`kitchen check {name}` shows those of the file.\n",
        )


def print_settings(out: Console, settings: Sequence[SettingDescription]) -> None:
    """Print a table, or blocks of lines where its columns would be narrow."""
    if out.width >= WIDTH:
        columns = ("name", "default", "type and meaning")
        out.print(table(Table("Settings", columns, tuple(map(_row, settings)))))
        return
    out.print("Settings", style="bold")
    for name, default, meaning in map(_row, settings):
        out.print(Text(printable(f"{name}  {default}")))
        out.print(Padding(Text(printable(meaning), style="dim"), (0, 0, 0, 4)))


def yaml_lines(name: str, cls: type[Recipe]) -> Iterator[str]:
    """Yield the lines of a YAML file that sets every setting of a recipe to its default.

    A setting without a default is commented out.
    """
    for paragraph in (cls.__doc__ or "").split("\n\n"):
        yield from _comment(paragraph, 0)
    yield from _comment(
        "All settings are at their defaults. Delete the lines that you do not change.", 0
    )
    yield f"recipe: {yaml_value(name)}"
    yield ""
    yield from _comment("adapters and their settings; `kitchen list` names the adapters", 0)
    yield f"# adapters: {{training: {DEFAULTS['training']}}}"
    yield "# adapter_settings: {training: {device: cpu}}"
    group: list[str] = []  # the names of the mappings that contain the line before
    for setting in describe_settings(cls):
        *parents, key = setting.name.split(".")
        shared = _shared_length(group, parents)
        if not shared:
            yield ""
        for depth, parent in enumerate(parents[shared:], shared):
            yield f"{'  ' * depth}{parent}:"
        yield from _setting_lines(setting, key, len(parents))
        group = parents


def _shared_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the number of items that two sequences begin with in common."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _setting_lines(setting: SettingDescription, key: str, depth: int) -> Iterator[str]:
    meaning = f"{setting.about} ({setting.type})" if setting.about else setting.type
    if not setting.default:
        meaning = f"required: {meaning}"
    yield from _comment(meaning, depth)
    line = f"{key}: {setting.default}" if setting.default else f"# {key}:"
    yield "  " * depth + line


def _comment(text: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for line in wrap(printable(text), _WIDTH - len(indent) - 2, break_on_hyphens=False):
        yield f"{indent}# {line}"


def _row(setting: SettingDescription) -> tuple[str, str, str]:
    meaning = "; ".join(filter(None, (setting.type, setting.about)))
    return setting.name, setting.default or "(required)", meaning


def _default_workflow(cls: type[Recipe]) -> tuple[Step | None, str]:
    """Return the workflow with all defaults; if they are not enough, None and the reason."""
    required = [name for name, info in cls.model_fields.items() if info.is_required()]
    if required:
        return None, f"set {', '.join(required)}"
    try:
        return build_workflow(cls()), ""
    except ConfigError as error:
        is_translated = error.__cause__ is not None  # an exception of the recipe's code
        if is_translated or isinstance(error, NotAStep):
            raise
        return None, str(error)


def _stages(workflow: Step | None) -> Sequence[Stage]:
    if workflow is None:
        return ()
    return [step for step in walk(workflow) if isinstance(step, Stage)]


def _ports(stages: Sequence[Stage]) -> Sequence[str]:
    """Return the ports that the stages read, and "blobs", which every run is recorded in."""
    reads = chain.from_iterable(stage.contract().reads for stage in stages)
    kinds = {read.kind for read in reads}
    return [
        port for port, types in PORT_TYPES.items() if port == "blobs" or not kinds.isdisjoint(types)
    ]

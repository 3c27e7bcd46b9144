"""`kitchen describe`: the settings, stages and ports of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from rich.text import Text

from kitchen.cli.commands.check import workflow_tree
from kitchen.cli.commands.json_output import as_json
from kitchen.cli.console import console, table
from kitchen.config.adapters import PORT_TYPES
from kitchen.config.describe import SettingDescription, describe_settings
from kitchen.config.discovery import NotAStep, build_workflow, find_recipe, import_path
from kitchen.errors import ConfigError
from kitchen.recipe import Recipe
from kitchen.stage import Stage
from kitchen.types import Table
from kitchen.workflow import Step, walk


def describe_recipe(name: str, *, json: bool) -> int:
    """Print the description of a recipe; raises the error of `find_recipe`."""
    cls = find_recipe(name)
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
        print(as_json(description))
        return 0
    out = console()
    heading = Text.assemble((import_path(cls), "bold"), f"\n{docstring}" if docstring else "")
    out.print(heading, end="\n\n")
    columns = ("name", "default", "type and meaning")
    out.print(table(Table("Settings", columns, tuple(map(_row, settings)))))
    out.print()
    if workflow is None:
        out.print(f"The stages need more than the default settings: {reason}", soft_wrap=True)
        out.print("Pass these settings to `kitchen check` to see the stages.")
    else:
        out.print(workflow_tree("Stages", workflow))
        out.print(f"\nPorts: {', '.join(ports)}")
    return 0


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

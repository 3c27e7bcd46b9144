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
from kitchen.config.discovery import build_workflow, find_recipe, import_path
from kitchen.recipe import Recipe
from kitchen.stage import Stage
from kitchen.types import Table
from kitchen.workflow import Step, walk


def describe_recipe(name: str, *, json: bool) -> int:
    """Print the description of a recipe; raises the error of `find_recipe`."""
    cls = find_recipe(name)
    docstring = (cls.__doc__ or "").strip()
    settings = list(describe_settings(cls))
    workflow = _default_workflow(cls)
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
        out.print("The stages depend on required settings: pass them to `kitchen check`.")
    else:
        out.print(workflow_tree("Stages", workflow))
        out.print(f"\nPorts: {', '.join(ports)}")
    return 0


def _row(setting: SettingDescription) -> tuple[str, str, str]:
    meaning = "; ".join(filter(None, (setting.type, setting.about)))
    return setting.name, setting.default or "(required)", meaning


def _default_workflow(cls: type[Recipe]) -> Step | None:
    """Return the workflow with all defaults, or None for a recipe with required settings."""
    if any(info.is_required() for info in cls.model_fields.values()):
        return None
    return build_workflow(cls())


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

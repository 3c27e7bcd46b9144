"""`kitchen list` and `kitchen describe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from kitchen.cli.commands.check import tree
from kitchen.cli.commands.failure import as_json, reasons
from kitchen.cli.console import console, table
from kitchen.config.adapters import (
    DEFAULTS,
    PORT_TYPES,
    PORTS,
    adapter_class,
    adapter_settings,
    available,
)
from kitchen.config.describe import SettingDescription, describe_settings
from kitchen.config.discovery import (
    add_cwd_to_path,
    build_workflow,
    check_not_shadowed,
    find_recipe,
    import_path,
    recipe_modules,
)
from kitchen.config.extras import extra_for, required_packages
from kitchen.errors import KitchenError
from kitchen.recipe import Recipe
from kitchen.stage import Stage
from kitchen.types import Table
from kitchen.workflow import Step, walk


def catalogue(*, json: bool) -> int:
    """What there is to cook, and to cook with."""
    add_cwd_to_path()
    check_not_shadowed()
    recipes = [(one.name, one.summary) for one in recipe_modules()]
    adapters = [_adapter(port, name) for port in PORTS for name in sorted(available(port))]
    if json:
        print(
            as_json(
                {
                    "recipes": [{"name": name, "about": about} for name, about in recipes],
                    "adapters": adapters,
                }
            )
        )
        return 0
    out = console()
    out.print(table(Table("Recipes", ("name", "about"), tuple(recipes))))
    out.print()
    rows = tuple(
        (each["port"], each["name"] + " *" * each["default"], each["about"], each["needs"])
        for each in adapters
    )
    out.print(
        table(Table("Adapters (* unless told otherwise)", ("port", "name", "about", "needs"), rows))
    )
    return 0


def _adapter(port: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"port": port, "name": name, "default": DEFAULTS[port] == name}
    try:
        cls = adapter_class(port, name)
    except KitchenError as error:
        return {**found, "about": reasons(error)[0], "needs": "?", "settings": []}
    about = (cls.__doc__ or "").strip().split("\n")[0]
    # these once it is asked for what it alone has
    wanted = required_packages(cls) or tuple(getattr(cls, "lazily", ()))
    needs = extra_for(wanted) or ", ".join(wanted) or "the core"
    return {**found, "about": about, "needs": needs, "settings": list(adapter_settings(cls))}


def describe(name: str, *, json: bool) -> int:
    """What a recipe does, and what can be set on it."""
    cls = find_recipe(name)
    about, settings, step = (
        (cls.__doc__ or "").strip(),
        list(describe_settings(cls)),
        _workflow(cls),
    )
    if json:
        stages = (
            list(dict.fromkeys(each.title() for each in walk(step) if isinstance(each, Stage)))
            if step
            else []
        )
        print(
            as_json(
                {
                    "recipe": import_path(cls),
                    "about": about,
                    "settings": [vars(each) for each in settings],
                    "stages": stages,
                    "ports": list(_ports(step)),
                }
            )
        )
        return 0
    out = console()
    out.print(Text.assemble((import_path(cls), "bold"), f"\n{about}" if about else ""), end="\n\n")
    out.print(
        table(
            Table("Settings", ("name", "default", "type and meaning"), tuple(map(_row, settings)))
        )
    )
    out.print()
    _say_workflow(out, cls, step)
    return 0


def _row(one: SettingDescription) -> tuple[str, str, str]:
    return (
        one.name,
        one.default or "(must be given)",
        "; ".join(filter(None, (one.type, one.about))),
    )


def _workflow(cls: type[Recipe]) -> Step | None:
    """None for a recipe that has settings without a default."""
    if any(info.is_required() for info in cls.model_fields.values()):
        return None
    return build_workflow(cls())


def _say_workflow(out: Console, cls: type[Recipe], step: Step | None) -> None:
    if step is None:
        out.print("Its stages depend on settings without a default: give them to `kitchen check`.")
        return
    out.print(tree("Stages", step))
    out.print(f"\nPorts: {', '.join(_ports(step))}")


def _ports(step: Step | None) -> Mapping[str, None]:
    stages = [each for each in walk(step) if isinstance(each, Stage)] if step else []
    kinds = {read.kind for each in stages for read in each.contract().reads}
    return {
        port: None
        for port, types in PORT_TYPES.items()
        if port == "blobs" or not kinds.isdisjoint(types)
    }

"""`kitchen list`: the recipes, adapters and trackers that are available here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kitchen.cli.commands.errors import reasons
from kitchen.cli.commands.json_output import print_json
from kitchen.cli.console import console, table
from kitchen.config.adapters import DEFAULTS, PORTS, adapter_class, adapter_settings, available
from kitchen.config.discovery import check_not_shadowed, recipe_modules
from kitchen.config.extras import extra_for, required_packages
from kitchen.config.trackers import available_trackers, tracker_class
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.errors import KitchenError
from kitchen.types import Table


def list_recipes_and_adapters(*, json: bool) -> int:
    """Print recipes, adapters and trackers; raises ConfigError if a package of ours is shadowed."""
    add_cwd_to_path()
    check_not_shadowed()
    recipes = [(module.name, module.summary) for module in recipe_modules()]
    adapters = []
    for port in PORTS:
        adapters += [_adapter(port, name) for name in sorted(available(port))]
    trackers = [_tracker(name) for name in sorted(available_trackers())]
    if json:
        listed = [{"name": name, "about": summary} for name, summary in recipes]
        print_json({"recipes": listed, "adapters": adapters, "trackers": trackers})
        return 0
    rows = [
        (
            adapter["port"],
            adapter["name"] + " *" * adapter["default"],
            adapter["about"],
            adapter["needs"],
        )
        for adapter in adapters
    ]
    out = console()
    out.print(table(Table("Recipes", ("name", "about"), tuple(recipes))))
    out.print()
    columns = ("port", "name", "about", "needs")
    out.print(table(Table("Adapters (* is the default)", columns, tuple(rows))))
    out.print()
    columns = ("name", "about", "needs", "settings")
    cells = [
        (tracker["name"], tracker["about"], tracker["needs"], ", ".join(tracker["settings"]))
        for tracker in trackers
    ]
    out.print(table(Table("Trackers (--observe)", columns, tuple(cells))))
    return 0


def _adapter(port: str, name: str) -> dict[str, Any]:
    described: dict[str, Any] = {"port": port, "name": name, "default": DEFAULTS[port] == name}
    return {**described, **_described(lambda: adapter_class(port, name))}


def _tracker(name: str) -> dict[str, Any]:
    return {"name": name, **_described(lambda: tracker_class(name))}


def _described(find: Callable[[], Any]) -> dict[str, Any]:
    """Return the summary, requirements and settings of an adapter, or why it cannot be imported."""
    try:
        cls = find()
    except KitchenError as error:
        return {"about": reasons(error)[0], "needs": "?", "settings": []}
    # `lazily` lists packages that only some features of an adapter import
    packages = required_packages(cls) or tuple(getattr(cls, "lazily", ()))
    return {
        "about": (cls.__doc__ or "").strip().split("\n")[0],
        "needs": extra_for(packages) or ", ".join(packages) or "the core",
        "settings": list(adapter_settings(cls)),
    }

"""`kitchen list`: the recipes and adapters that are available here."""

from __future__ import annotations

from typing import Any

from kitchen.cli.commands.errors import reasons
from kitchen.cli.commands.json_output import as_json
from kitchen.cli.console import console, table
from kitchen.config.adapters import DEFAULTS, PORTS, adapter_class, adapter_settings, available
from kitchen.config.discovery import check_not_shadowed, recipe_modules
from kitchen.config.extras import extra_for, required_packages
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.errors import KitchenError
from kitchen.types import Table


def list_recipes_and_adapters(*, json: bool) -> int:
    """Print all recipes and all adapters; raises ConfigError if a package of ours is shadowed."""
    add_cwd_to_path()
    check_not_shadowed()
    recipes = [(module.name, module.summary) for module in recipe_modules()]
    adapters = []
    for port in PORTS:
        adapters += [_adapter(port, name) for name in sorted(available(port))]
    if json:
        listed = [{"name": name, "about": summary} for name, summary in recipes]
        print(as_json({"recipes": listed, "adapters": adapters}))
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
    return 0


def _adapter(port: str, name: str) -> dict[str, Any]:
    described: dict[str, Any] = {"port": port, "name": name, "default": DEFAULTS[port] == name}
    try:
        cls = adapter_class(port, name)
    except KitchenError as error:
        return {**described, "about": reasons(error)[0], "needs": "?", "settings": []}
    # `lazily` lists packages that only some features of an adapter import
    packages = required_packages(cls) or tuple(getattr(cls, "lazily", ()))
    return {
        **described,
        "about": (cls.__doc__ or "").strip().split("\n")[0],
        "needs": extra_for(packages) or ", ".join(packages) or "the core",
        "settings": list(adapter_settings(cls)),
    }

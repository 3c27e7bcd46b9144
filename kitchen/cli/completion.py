"""What a shell completes: recipes, runs, adapters and ports, with none of them imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer


def recipes(incomplete: str) -> list[str]:
    """Without what each is about: zsh would take it over several lines."""
    from kitchen.config.discovery import add_cwd_to_path, recipe_modules

    add_cwd_to_path()
    return [one.name for one in recipe_modules() if one.name.startswith(incomplete)]


def runs(context: typer.Context, incomplete: str) -> list[str]:
    """Those in the folder of runs; a shell does not wait for a URL."""
    from kitchen.config.request import DEFAULT_RUNS_FOLDER

    folder = Path(context.params.get("runs") or DEFAULT_RUNS_FOLDER)
    return sorted(
        path.parent.name
        for path in folder.glob("*/run.json")
        if path.parent.name.startswith(incomplete)
    )


def adapters(port: str) -> Callable[[str], list[str]]:
    """The adapters of a port."""

    def names(incomplete: str) -> list[str]:
        from importlib.metadata import entry_points

        return sorted(
            each.name
            for each in entry_points(group=f"kitchen.{port}")
            if each.name.startswith(incomplete)
        )

    return names


def ports(incomplete: str) -> list[str]:
    from kitchen.config.adapters import PORTS

    return [port for port in PORTS if port.startswith(incomplete)]

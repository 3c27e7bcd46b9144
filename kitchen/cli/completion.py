"""Shell completion of recipes, runs, adapters and ports; nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer


def recipes(incomplete: str) -> list[str]:
    """Return the matching recipes; no descriptions, which zsh would spread over several lines."""
    from kitchen.config.discovery import recipe_modules
    from kitchen.config.working_folder import add_cwd_to_path

    add_cwd_to_path()
    return [module.name for module in recipe_modules() if module.name.startswith(incomplete)]


def recipes_and_files(incomplete: str) -> list[str]:
    """Return the matching recipes, and the YAML files in the folder that was typed."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    files = sorted(str(path) for path in folder.glob("*") if path.suffix in (".yaml", ".yml"))
    return [*recipes(incomplete), *(name for name in files if name.startswith(incomplete))]


def runs(context: typer.Context, incomplete: str) -> list[str]:
    """Return the matching runs in a local folder; a shell does not wait for a URL."""
    from kitchen.config.adapter_choice import DEFAULT_RUNS_FOLDER

    folder = Path(context.params.get("runs") or DEFAULT_RUNS_FOLDER)
    names = [record.parent.name for record in folder.glob("*/run.json")]
    return sorted(name for name in names if name.startswith(incomplete))


def models(context: typer.Context, incomplete: str) -> list[str]:
    """Return the matching registered models in a local folder."""
    from kitchen.config.adapter_choice import DEFAULT_RUNS_FOLDER

    folder = Path(context.params.get("runs") or DEFAULT_RUNS_FOLDER) / "_models"
    names = [model.name for model in folder.glob("*") if (model / "versions").is_dir()]
    return sorted(name for name in names if name.startswith(incomplete))


def adapters(port: str) -> Callable[[str], list[str]]:
    """Return a function that completes the adapters of a port."""

    def matching_adapters(incomplete: str) -> list[str]:
        from importlib.metadata import entry_points

        names = [entry.name for entry in entry_points(group=f"kitchen.{port}")]
        return sorted(name for name in names if name.startswith(incomplete))

    return matching_adapters


def ports(incomplete: str) -> list[str]:
    from kitchen.config.adapters import PORTS

    return [port for port in PORTS if port.startswith(incomplete)]

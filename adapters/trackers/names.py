"""Settings and tables as trackers take them: flat keys, texts, Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kitchen.runs.tracker import TrackedRun

DEFAULT_PROJECT = "crucible-kitchen"


def default_project(variable: str) -> str:
    """Return the project that an environment variable names, or else ours."""
    return os.environ.get(variable, "") or DEFAULT_PROJECT


def configuration(run: TrackedRun) -> dict[str, Any]:
    """Return the settings of a run, and its recipe and adapters under "kitchen"."""
    return {**run.settings, "kitchen": {"recipe": run.recipe, "adapters": dict(run.adapters)}}


def flattened(values: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested settings under dotted keys."""
    for key, value in values.items():
        name = f"{parent}{key}"
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{name}.")
        else:
            yield name, value


def cells(rows: Sequence[Sequence[Any]]) -> list[list[str | int | float | bool]]:
    """Return the rows of a table with numbers and texts only."""
    return [list(map(cell, row)) for row in rows]


def cell(value: Any) -> str | int | float | bool:
    """Return a value of a table as a number or text."""
    if isinstance(value, int | float | bool):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    # half of a surrogate pair is no character, and cannot be stored
    return text.encode(errors="backslashreplace").decode()


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table in Markdown; a cell stays on its line."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines)


def _markdown_cell(value: Any) -> str:
    text = str(cell(value)).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("\r", " ").replace("\n", "<br>")

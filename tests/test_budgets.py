"""Size budgets: the language, engine and ports stay small, functions short, folders readable.

Lines are counted with docstrings and comments, without blank lines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LANGUAGE = ("types", "stage", "workflow", "recipe", "progress", "errors", "secrets")
MAX_FUNCTION = 40  # lines
MAX_RECIPE = 60
MAX_RUN = 25  # of a stage's `run`, exclusive
NOT_ENTRIES = {"__init__.py", "py.typed", "__pycache__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines(paths: Iterator[Path]) -> int:
    return sum(bool(line.strip()) for path in paths for line in path.read_text().splitlines())


def length(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


@pytest.mark.parametrize(
    ("name", "pattern", "budget"), [("engine", "engine/*.py", 1500), ("ports", "ports/*.py", 600)]
)
def test_folder_fits_its_budget(name: str, pattern: str, budget: int) -> None:
    assert lines((ROOT / "kitchen").glob(pattern)) <= budget


def test_language_fits_its_budget() -> None:
    assert lines(ROOT / f"kitchen/{name}.py" for name in LANGUAGE) <= 900


@pytest.mark.parametrize(
    ("folder", "most"), [("kitchen", 18), ("stages", 13), ("adapters/peft", 13)]
)
def test_folder_has_few_entries(folder: str, most: int) -> None:
    entries = {path.name for path in (ROOT / folder).iterdir()} - NOT_ENTRIES
    assert len(entries) <= most, sorted(entries)


def test_functions_are_short() -> None:
    long = [
        f"{path}: {node.name} has {length(node)} lines"
        for path, module in modules("kitchen", "stages", "adapters", "recipes")
        for node in ast.walk(module)
        if isinstance(node, Function) and length(node) > MAX_FUNCTION
    ]
    assert not long, long


def test_recipes_are_short() -> None:
    shared = {"_base.py"}  # groups of settings, not a recipe
    long = {
        path.name: lines(iter([path]))
        for path in (ROOT / "recipes").glob("*.py")
        if lines(iter([path])) > MAX_RECIPE
    }
    assert long.keys() <= shared, long


def test_run_methods_of_stages_are_short() -> None:
    long = [
        f"{path}: {node.name}.run has {length(method)} lines"
        for path, module in modules("stages")
        for node in module.body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, Function) and method.name == "run" and length(method) >= MAX_RUN
    ]
    assert not long, long

"""Budgets: the language, engine and ports stay small, functions short, expressions simple.

Lines are counted with docstrings and comments, without blank lines.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LANGUAGE = ("types", "stage", "workflow", "recipe", "progress", "errors", "secrets")
MAX_FUNCTION = 40  # lines
MAX_RECIPE = 60
MAX_RUN = 25  # of a stage's `run`, exclusive
NOT_ENTRIES = {"__init__.py", "py.typed", "__pycache__"}
PLAIN_PACKAGES = (
    "kitchen",
    "adapters",
    "stages",
    "recipes",
)  # without stacked comprehensions and conditionals

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def lines(paths: Iterator[Path]) -> int:
    return sum(bool(line.strip()) for path in paths for line in path.read_text().splitlines())


def length(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    for package in packages:
        yield from parsed(package)


@cache
def parsed(package: str) -> list[tuple[str, ast.Module]]:
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths, f"{package} has no modules"
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths]


def methods(module: ast.Module) -> Iterator[tuple[str, Function]]:
    """Yield the methods of a module's classes, each with the name of its class."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, Function):
                    yield node.name, method


@pytest.mark.parametrize(
    ("name", "pattern", "budget"), [("engine", "engine/*.py", 1500), ("ports", "ports/*.py", 600)]
)
def test_folder_fits_its_budget(name: str, pattern: str, budget: int) -> None:
    assert lines((ROOT / "kitchen").glob(pattern)) <= budget


def test_language_fits_its_budget() -> None:
    assert lines(ROOT / f"kitchen/{name}.py" for name in LANGUAGE) <= 900


@pytest.mark.parametrize(
    ("folder", "most"), [("kitchen", 19), ("stages", 13), ("adapters/peft", 13)]
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
        f"{path}: {name}.run has {length(method)} lines"
        for path, module in modules("stages")
        for name, method in methods(module)
        if method.name == "run" and length(method) >= MAX_RUN
    ]
    assert not long, long


def places(package: str, is_broken: Callable[[ast.AST], bool]) -> list[str]:
    return [
        f"{path}:{getattr(node, 'lineno', 0)}"
        for path, module in modules(package)
        for node in ast.walk(module)
        if is_broken(node)
    ]


def is_stacked(node: ast.AST) -> bool:
    """Return whether a comprehension has a second `for`, or another one as element or iterable.

    A comprehension in a condition, such as `if any(...)`, is allowed.
    """
    if not isinstance(node, Comprehension):
        return False
    parts: list[ast.AST] = [generator.iter for generator in node.generators]
    parts += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    inner = chain.from_iterable(map(ast.walk, parts))
    return len(node.generators) > 1 or any(isinstance(part, Comprehension) for part in inner)


def is_chained(node: ast.AST) -> bool:
    """Return whether a conditional expression has another one as a branch."""
    if not isinstance(node, ast.IfExp):
        return False
    return isinstance(node.body, ast.IfExp) or isinstance(node.orelse, ast.IfExp)


@pytest.mark.parametrize("package", PLAIN_PACKAGES)
def test_comprehensions_are_not_stacked(package: str) -> None:
    assert not places(package, is_stacked)


@pytest.mark.parametrize("package", PLAIN_PACKAGES)
def test_conditional_expressions_are_not_chained(package: str) -> None:
    assert not places(package, is_chained)


@pytest.mark.parametrize(
    ("source", "stacked"),
    [
        ("[cell for row in rows for cell in row]", True),
        ("[[cell for cell in row] for row in rows]", True),
        ("{key: sum(n for n in values) for key, values in rows}", True),
        ("[x for x in (y for y in rows)]", True),
        ("[row for row in rows if any(cell for cell in row)]", False),
        ("list(chain.from_iterable(rows))", False),
    ],
)
def test_stacked_comprehensions_are_recognised(source: str, stacked: bool) -> None:
    assert is_stacked(ast.parse(source, mode="eval").body) == stacked

"""A recipe reads like a recipe."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", [each.name for each in sorted((ROOT / "recipes").glob("*.py"))])
def test_a_recipe_is_under_50_lines(file: str) -> None:
    assert len((ROOT / "recipes" / file).read_text().splitlines()) < 50


@pytest.mark.parametrize("file", [each.name for each in sorted((ROOT / "stages").glob("*.py"))])
def test_what_a_stage_does_is_under_25_lines(file: str) -> None:
    classes = [
        each
        for each in ast.parse((ROOT / "stages" / file).read_text()).body
        if isinstance(each, ast.ClassDef)
    ]
    runs = {
        each.name: one
        for each in classes
        for one in each.body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == "run"
    }
    sizes = {name: (one.end_lineno or 0) - one.lineno + 1 for name, one in runs.items()}
    assert not {name: size for name, size in sizes.items() if size >= 25}

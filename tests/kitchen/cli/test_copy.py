"""`kitchen copy` writes a recipe that works as the original does, and overwrites nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import recipes.sl_basic
from kitchen.config.discovery import recipe_modules
from tests.support.commands import invoke, output
from tests.support.soup import FAKE, SMALL

MINE = """from kitchen import Recipe, Step, sequence
from .parts import SIZE
class Mine(Recipe):
    size: int = SIZE
    def workflow(self) -> Step:
        from . import parts
        assert parts.SIZE == SIZE
        return sequence()
class Other(Mine):
    pass
"""


@pytest.fixture(autouse=True)
def forget_copies(here: Path) -> Iterator[None]:
    """Forget the modules that a test imports: the next one writes others of the same name."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(here) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("recipe", [module.name for module in recipe_modules()])
def test_a_copy_has_the_plan_of_the_recipe(recipe: str) -> None:
    copied = recipe.replace("recipes.", "recipes.my_")
    assert f"kitchen check {copied} --training fake" in output(0, "copy", recipe)
    results = [invoke("check", name, *FAKE, "--json") for name in (recipe, copied)]
    original, copy = (json.loads(result.stdout) for result in results)
    assert copy["recipe"].startswith(f"{copied}:")
    for key in ("plan", "settings", "exit_code"):
        assert copy[key] == original[key]
    assert len(copy["problems"]) == len(original["problems"])


def test_a_copied_file_runs(here: Path) -> None:
    output(0, "copy", "recipes.sl_basic", "--to", "own/soup.py")
    assert (here / "own/soup.py").read_text() == Path(recipes.sl_basic.__file__).read_text()
    for name in ("own/soup.py:SlBasic", "own.soup"):
        assert "completed" in output(0, "run", name, *SMALL[1:])
    assert "did you mean 'SlBasic'" in output(2, "check", "own/soup.py:SlBasics")


def test_relative_imports_become_absolute(here: Path) -> None:
    (here / "kit").mkdir()
    (here / "kit/parts.py").write_text("SIZE = 3\n")
    (here / "kit/mine.py").write_text(MINE)
    shown = output(0, "copy", "kit.mine:Other")
    assert "kitchen run recipes.my_mine:Other" in shown
    text = (here / "recipes/my_mine.py").read_text()
    assert "\nfrom kit.parts import SIZE\n" in text
    assert "        from kit import parts\n" in text
    output(0, "check", "recipes.my_mine:Other", *FAKE)


def test_a_copy_of_another_encoding_is_in_utf_8(here: Path) -> None:
    source = '# -*- coding: latin-1 -*-\n"""Crème."""\nfrom recipes.sl_basic import SlBasic\n'
    source += "class Creme(SlBasic):\n    pass\n"
    (here / "kit").mkdir()
    (here / "kit/creme.py").write_text(source, encoding="latin-1")
    output(0, "copy", "kit.creme")
    copied = (here / "recipes/my_creme.py").read_text("utf-8")
    assert copied == source.replace("latin-1", "utf-8")


def test_a_copy_may_be_in_another_folder(here: Path) -> None:
    shown = output(0, "copy", "recipes.kto", "--to", "my-lab/recipes/labels.py")
    assert "cd my-lab\n  kitchen check recipes.labels --training fake" in shown
    assert (here / "my-lab/recipes/labels.py").is_file()
    shown = output(2, "check", "my-lab/recipes/labels.py")
    assert "my-lab/recipes/labels.py cannot be imported" in shown
    (here / "lab").mkdir()
    output(0, "copy", "recipes.kto", "--to", str(here.parent / f"{here.name}_lab/labels.py"))
    outside = output(2, "check", f"../{here.name}_lab/labels.py")
    assert "is outside of the current folder" in outside


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("kept.py", "kept.py exists already and is not overwritten"),
        ("recipes/dpo.py", "the module recipes.dpo exists already"),
        ("json.py", "the module json exists already"),
        ("my-dpo.py", "'my-dpo' cannot be the name of a module"),
        ("class.py", "'class' cannot be the name of a module"),
        ("dpo.txt", "a recipe is a file of Python"),
        ("hidden/recipes/x.py", "makes 'recipes' a regular package"),
    ],
)
def test_a_copy_overwrites_and_hides_nothing(here: Path, to: str, reason: str) -> None:
    (here / "kept.py").write_text("# mine\n")
    (here / "hidden-1/recipes").mkdir(parents=True)
    (here / "hidden-1/recipes/__init__.py").touch()
    before = sorted(here.rglob("*"))
    to = to.replace("hidden/", "hidden-1/")
    assert reason in " ".join(output(2, "copy", "recipes.dpo", "--to", to).split())
    assert sorted(here.rglob("*")) == before
    assert (here / "kept.py").read_text() == "# mine\n"


def test_a_file_must_not_be_hidden_by_a_module(here: Path) -> None:
    (here / "json.py").write_text("# mine\n")
    assert "json.py is hidden by another module json" in output(2, "check", "json.py")

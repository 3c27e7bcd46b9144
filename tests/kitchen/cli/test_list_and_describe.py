"""`kitchen list` and `kitchen describe`; and the help of every command."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from kitchen.cli import app
from kitchen.cli.commands.describe import print_settings
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.describe import SettingDescription, describe_settings
from kitchen.config.discovery import find_recipe, recipe_modules
from kitchen.config.request import RunRequest, resolve_request
from tests.support.commands import invoke, output

pytestmark = pytest.mark.usefixtures("soup")
BROTH = """from kitchen import Recipe
class Broth(Recipe):
    salt: int
    def workflow(self):
        return unknown
"""


@pytest.fixture(autouse=True)
def broth() -> Iterator[None]:
    """Forget recipes.broth after each test: the next one writes another module of that name."""
    yield
    sys.modules.pop("recipes.broth", None)


def test_recipes_and_adapters_are_listed() -> None:
    shown = output(0, "list")
    assert "recipes.sl_basic" in shown
    assert "A recipe that fails on request." in shown
    found = json.loads(invoke("list", "--json").stdout)
    adapters = {(adapter["port"], adapter["name"]): adapter for adapter in found["adapters"]}
    assert adapters["training", "peft"]["needs"] == "crucible-kitchen[local]"
    assert adapters["training", "peft"]["default"]
    assert adapters["training", "fake"]["needs"] == "the core"


def test_a_recipe_is_described() -> None:
    shown = output(0, "describe", "recipes.sl_basic")
    assert "whole number > 0; conversations per optimiser step" in " ".join(shown.split())
    assert "Ports: training, datasets, blobs" in shown
    found = json.loads(invoke("describe", "recipes.soup", "--json").stdout)
    assert found["settings"] == [
        {
            "name": "wrong",
            "type": "no or disk or bug or secret or exit",
            "default": "no",
            "about": "what goes wrong",
        }
    ]
    assert found["stages"] == ["Boil"]


@pytest.mark.parametrize("recipe", ["recipes.distillation", "recipes.distillation_off_policy"])
def test_settings_are_described_without_a_teacher(recipe: str) -> None:
    shown = output(0, "describe", recipe)
    assert "rendering.max_tokens" in shown
    assert "teacher=WEIGHTS" in shown, "the stages need it"
    described = json.loads(invoke("describe", recipe, "--json").stdout)
    assert "teacher" in {setting["name"] for setting in described["settings"]}
    assert described["stages"] == []


def test_required_settings_are_described(here: Path) -> None:
    (here / "recipes/broth.py").write_text(BROTH)
    shown = output(0, "describe", "recipes.broth")
    assert "(required)" in shown
    assert "set salt" in shown


@pytest.mark.parametrize("recipe", [module.name for module in recipe_modules()])
def test_every_setting_has_a_meaning(recipe: str) -> None:
    unexplained = [each.name for each in describe_settings(find_recipe(recipe)) if not each.about]
    assert not unexplained


def test_a_narrow_terminal_gets_lines_in_place_of_columns() -> None:
    file = io.StringIO()
    settings = [SettingDescription("steps", "whole number > 0", "30", "batches " * 20)]
    print_settings(Console(file=file, width=80), settings)
    lines = file.getvalue().splitlines()
    assert lines[1].split() == ["steps", "30"]
    assert all(line.startswith("    ") for line in lines[2:])
    assert file.getvalue().count("batches") == 20


def test_a_file_is_described_as_its_recipe(here: Path) -> None:
    (here / "mine.yaml").write_text("recipe: recipes.soup\nwrong: disk\n")
    for command in ("describe", "schema"):
        shown = output(0, command, "mine.yaml")
        assert "what goes wrong" in shown
        assert ("`kitchen check mine.yaml` shows those of the file" in shown) == (
            command == "describe"
        )
        assert "mine.yml: No such file" in output(2, command, "mine.yml")
    assert output(0, "describe", "mine.yaml", "--yaml").count("recipe: recipes.soup:Soup") == 1
    assert "is a YAML file, and not a recipe" in output(2, "copy", "mine.yaml")


def test_a_bug_in_a_workflow_is_not_described_away(here: Path) -> None:
    (here / "recipes/broth.py").write_text(BROTH.replace("salt: int", "salt: int = 1"))
    assert "broth.py:5: NameError" in output(2, "describe", "recipes.broth")


def commands() -> Iterator[Any]:
    """Yield `kitchen`, its commands and theirs."""
    waiting: list[Any] = [typer.main.get_command(app)]
    while waiting:
        command = waiting.pop()
        yield command
        waiting += getattr(command, "commands", {}).values()


def test_every_command_has_a_summary_and_examples() -> None:
    for command in commands():
        summary = (command.help or "").split("\n")[0]
        assert summary.endswith("."), command.name
        assert command.get_short_help_str(limit=64) == summary, "it is cut at 80 columns"
        assert "Examples:" in (command.epilog or ""), command.name


def test_every_example_is_a_valid_command_line() -> None:
    kitchen = typer.main.get_command(app)
    for command in commands():
        for line in command.epilog.splitlines()[2:]:
            words = shlex.split(line.split(" > ")[0].split(" < ")[0])
            assert words[0] == "kitchen"
            parsed: Any = kitchen
            names = []
            while hasattr(parsed, "commands") and words[1:] and words[1] in parsed.commands:
                parsed = parsed.commands[words.pop(1)]
                names.append(parsed.name)
            parsed.make_context(" ".join(names), words[1:])


@pytest.mark.parametrize("recipe", [module.name for module in recipe_modules()])
def test_a_described_file_is_the_recipe_with_its_defaults(recipe: str, here: Path) -> None:
    text = output(0, "describe", recipe, "--yaml")
    (here / "all.yaml").write_text(text)
    adapters = AdapterChoice({"training": "fake"})
    described = resolve_request(RunRequest("all.yaml", (), (), adapters))
    default = resolve_request(RunRequest(recipe, (), (), adapters))
    assert described.cls is default.cls
    assert described.recipe == default.recipe
    assert list(map(str, described.problems)) == list(map(str, default.problems))
    assert all(place.startswith("all.yaml:") for place in described.sources.values())
    words = " ".join(line.strip().removeprefix("# ") for line in text.splitlines())
    assert all(setting.about in words for setting in describe_settings(default.cls))


def test_required_settings_are_commented_out_in_a_file(here: Path) -> None:
    broth = BROTH.replace("salt: int", "salt: int  # in grams").replace("unknown", "sequence()")
    broth = broth.replace("Recipe\n", "Recipe, sequence\n", 1)
    (here / "recipes/broth.py").write_text(broth)
    text = output(0, "describe", "recipes.broth", "--yaml")
    assert "# required: in grams (whole number)\n# salt:\n" in text
    (here / "broth.yaml").write_text(text)
    assert "salt has no default" in output(2, "check", "broth.yaml")
    (here / "broth.yaml").write_text(text.replace("# salt:", "salt: 3"))
    assert re.search(r"salt +3  broth\.yaml:\d", output(0, "check", "broth.yaml"))
    assert "choose one" in output(2, "describe", "recipes.broth", "--yaml", "--json")

"""Discovery of recipes: those that ship, and those in the current folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kitchen.config.discovery import find_recipe, import_path, recipe_modules
from kitchen.config.extras import check_installed, extra_for, install_command_for
from kitchen.config.settings import resolve_settings
from kitchen.errors import BackendError, ConfigError
from tests.support.commands import in_folder, kitchen, output

SHADOWED = ("stages", "adapters")

RECIPE = '''"""A recipe of mine."""
from kitchen import Recipe, Stage, Step, sequence
class Boil(Stage):
    def run(self) -> None: ...
class {name}(Recipe):
    def workflow(self) -> Step:
        return sequence(Boil())
'''


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def refusal(folder: Path, name: str, command: str = "check") -> str:
    """Return the errors of `kitchen COMMAND NAME` in that folder."""
    with in_folder(folder):
        shown = output(2, command, name)
    sys.modules.pop(name, None)  # the next test may have another module of that name
    return shown


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [
        ({"score.py": "", "score/x.py": ""}, "score/x.py", "there is no recipe 'score.x'"),
        ({"bad/__init__.py": "1 / 0", "bad/y.py": ""}, "bad/y.py", "bad.y cannot be imported"),
        ({"__main__.py": ""}, "__main__.py", "__main__.py cannot be a recipe"),
    ],
)
def test_files_that_are_no_modules_are_refused(
    files: dict[str, str], name: str, text: str, tmp_path: Path
) -> None:
    for file, code in files.items():
        write(tmp_path, file, code)
    shown = refusal(tmp_path, name)
    assert text in shown
    sys.modules.pop("score", None)


def test_recipes_are_found_by_module_and_by_class() -> None:
    found = find_recipe("recipes.sl_basic")
    assert find_recipe("recipes.sl_basic:SlBasic") is found
    assert find_recipe(import_path(found)) is found
    [sl_basic] = [module for module in recipe_modules() if module.name == "recipes.sl_basic"]
    assert sl_basic.summary


@pytest.mark.parametrize(
    "typed", ["recipes.sl_basc", "sl_basic", "recipes/sl_basc.py", "recipes.sl-basic"]
)
def test_unknown_recipe_gets_a_suggestion(typed: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'recipes\.sl_basic'\?"):
        find_recipe(typed)


def test_unknown_class_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'SlBasic'"):
        find_recipe("recipes.sl_basic:SlBasc")


def test_recipes_in_the_current_folder_are_found(tmp_path: Path) -> None:
    write(tmp_path, "recipes/mine_found.py", RECIPE.format(name="Mine"))
    with in_folder(tmp_path):
        found = find_recipe("recipes.mine_found")
        assert resolve_settings(found, ()).recipe == found()
        summaries = {module.name: module.summary for module in recipe_modules()}
        assert "recipes.sl_basic" in summaries
        assert summaries["recipes.mine_found"] == "A recipe of mine."


def test_module_with_several_recipes_lists_them(tmp_path: Path) -> None:
    write(tmp_path, "recipes/both_found.py", RECIPE.format(name="One") + RECIPE.format(name="Two"))
    with in_folder(tmp_path):
        with pytest.raises(ConfigError, match=r"recipes\.both_found:One, recipes\.both_found:Two"):
            find_recipe("recipes.both_found")
        assert find_recipe("recipes.both_found:Two").__name__ == "Two"


def test_module_without_recipe_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "recipes/none_found.py", "from kitchen import Recipe\n")
    with in_folder(tmp_path), pytest.raises(ConfigError, match="defines no recipe"):
        find_recipe("recipes.none_found")


@pytest.mark.parametrize(
    "name", ["recipes", *(pytest.param(name, marks=pytest.mark.slow) for name in SHADOWED)]
)
def test_package_that_shadows_ours_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, f"{name}/__init__.py", "")
    done = kitchen(tmp_path, "check", "recipes.sl_basic")
    assert done.returncode == 2
    assert f"{tmp_path}/{name}/__init__.py makes '{name}' a regular package" in done.stderr


def test_import_error_names_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, "recipes/broken.py", "from kitchen import Recipe\n\nx = = 3\n")
    assert f"{tmp_path}/recipes/broken.py:3: SyntaxError: invalid syntax" in refusal(
        tmp_path, "recipes.broken"
    )
    write(tmp_path, "recipes/broken.py", "import kitchen\n\nraise ValueError('no salt')\n")
    assert f"{tmp_path}/recipes/broken.py:3: ValueError: no salt" in refusal(
        tmp_path, "recipes.broken"
    )
    write(tmp_path, "recipes/broken.py", "import sault\n")
    assert "broken.py:1: ModuleNotFoundError: No module named 'sault'" in refusal(
        tmp_path, "recipes.broken"
    )
    write(tmp_path, "recipes/broken.py", "import json\n\njson.loads('{')\n")  # it fails in json
    assert "broken.py:3: JSONDecodeError: Expecting" in refusal(tmp_path, "recipes.broken")
    write(tmp_path, "recipes/broken.py", "import sys\nsys.exit(3)\n")
    error = refusal(tmp_path, "recipes.broken")
    assert "recipes.broken cannot be imported: " in error
    assert "recipes/broken.py:2: SystemExit: 3" in error


def test_workflow_error_names_file_and_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        "recipes/odd.py",
        RECIPE.format(name="Odd").replace("sequence(Boil())", "sequence(3)"),
    )
    error = refusal(tmp_path, "recipes.odd")
    assert "the workflow of recipes.odd cannot be built" in error
    assert "recipes/odd.py:7: TypeError: 3 is not a step" in error


@pytest.mark.parametrize("command", ["check", "run", "describe"])
@pytest.mark.parametrize("name", ["importing", "building"])
def test_exceptions_of_every_kind_are_named(tmp_path: Path, name: str, command: str) -> None:
    failure = "class Stop(BaseException): ...\n"
    text = RECIPE.format(name=name.title())
    if name == "importing":
        text = f"{failure}raise Stop('no salt')\n{text}"
    else:
        text = failure + text.replace("return sequence(Boil())", "raise Stop('no salt')")
    write(tmp_path, f"recipes/{name}.py", text)
    assert "Stop: no salt" in refusal(tmp_path, f"recipes.{name}", command)


@pytest.mark.parametrize("command", ["check", "run", "describe"])
def test_stage_without_types_is_named_with_its_line(tmp_path: Path, command: str) -> None:
    write(
        tmp_path,
        "recipes/bare.py",
        RECIPE.format(name="Bare").replace("run(self)", "run(self, pot)"),
    )
    error = refusal(tmp_path, "recipes.bare", command)
    assert "recipes/bare.py:4: TypeError: Boil.run: 'pot' has no type annotation" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["check", "run", "describe"])
def test_workflow_that_returns_nothing_is_refused(tmp_path: Path, command: str) -> None:
    write(
        tmp_path,
        "recipes/empty.py",
        RECIPE.format(name="Empty").replace("return sequence", "sequence"),
    )
    error = refusal(tmp_path, "recipes.empty", command)
    assert "recipes.empty:Empty.workflow returned None, not a step" in error
    assert "recipes/empty.py:6" in error
    assert not (tmp_path / "runs").exists()


def test_missing_package_is_named_with_its_pip_command() -> None:
    class Needy:
        packages = ("torch", "no_such_package")

    assert install_command_for("torch.nn") == "pip install 'crucible-kitchen[local]'"
    assert install_command_for("sault") == ""
    assert extra_for(["fsspec", "torch"]) == "crucible-kitchen[local]"
    with pytest.raises(
        BackendError, match=r"'needy' needs no_such_package, .*: pip install no_such_package"
    ):
        check_installed("training", "needy", Needy)
    check_installed("training", "plain", object)

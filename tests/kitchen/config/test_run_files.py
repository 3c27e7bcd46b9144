"""YAML files of a run: recipe, settings and adapters, each with its file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.request import Problems, ResolvedRequest, RunRequest, resolve_request
from kitchen.config.run_files import read_run_files
from kitchen.errors import ConfigError
from tests.support.commands import invoke, output

BASE = """recipe: recipes.sl_basic
adapters: {training: fake}
adapter_settings:
  datasets.max_line_mb: 7
reading.limit: 40
max_steps: 3
"""
MINE = """extends: base/base.yaml
max_steps: 2
evaluation:
  max_tokens: 4
"""


@pytest.fixture(autouse=True)
def files(here: Path) -> Path:
    """The current folder with mine.yaml, which extends base/base.yaml."""
    (here / "base").mkdir()
    (here / "base/base.yaml").write_text(BASE)
    (here / "mine.yaml").write_text(MINE)
    return here


def resolved(
    recipe: str, *settings: str, configs: tuple[str, ...] = (), **adapters: str
) -> ResolvedRequest:
    choice = AdapterChoice(adapters)
    return resolve_request(RunRequest(recipe, settings, tuple(map(Path, configs)), choice))


def problems(text: str, recipe: str = "recipes.sl_basic") -> list[str]:
    Path("bad.yaml").write_text(text)
    try:
        return list(map(str, resolved(recipe, configs=("bad.yaml",)).problems))
    except Problems as error:
        return list(map(str, error.problems))


def test_a_file_names_recipe_settings_and_adapters() -> None:
    found = resolved("mine.yaml", "max_steps=1")
    assert found.problems == []
    assert found.cls.__module__ == "recipes.sl_basic"
    assert found.names["training"] == "fake"
    assert found.adapter_settings["datasets"] == {"max_line_mb": 7}
    assert found.adapter_sources == {
        "training": "base/base.yaml:2",
        "datasets.max_line_mb": "base/base.yaml:4",
    }
    given = {key: place for key, place in found.sources.items() if place != "default"}
    assert given == {
        "reading.limit": "base/base.yaml:5",
        "max_steps": "command line",
        "evaluation.max_tokens": "mine.yaml:4",
    }
    assert found.recipe is not None
    assert found.recipe.model_dump()["max_steps"] == 1


def test_later_files_override_earlier_ones(files: Path) -> None:
    (files / "one.yaml").write_text("max_steps: 5\nepochs: 5\nreading.limit: 50\n")
    (files / "two.yaml").write_text("epochs: 6\nadapter_settings.datasets.max_line_mb: 8\n")
    found = resolved("mine.yaml", configs=("one.yaml", "two.yaml"))
    settings = found.require()[1].model_dump()
    assert (settings["max_steps"], settings["epochs"]) == (5, 6)
    assert settings["evaluation"]["max_tokens"] == 4
    assert found.sources["reading.limit"] == "one.yaml:3"
    assert found.adapter_settings["datasets"] == {"max_line_mb": 8}
    assert resolved("recipes.dpo", configs=("mine.yaml",)).cls.__module__ == "recipes.dpo"


def test_a_run_records_files_and_lines(files: Path) -> None:
    (files / "store.yaml").write_text("adapter_settings.blobs: {root: kept}\n")
    shown = output(0, "run", "mine.yaml", "--config", "store.yaml", "--name", "first")
    assert "kitchen chat first --runs kept" in shown
    order = json.loads((files / "kept/first/run.json").read_text())["order"]
    assert order["recipe"] == "recipes.sl_basic:SlBasic"
    assert order["sources"]["evaluation.max_tokens"] == "mine.yaml:4"
    assert order["adapter_sources"]["blobs.root"] == "store.yaml:1"
    shown = output(0, "runs", "show", "first", "--runs", "kept")
    assert "fake (base/base.yaml:2)" in shown
    assert "max_line_mb=7 (base/base.yaml:4)" in shown
    assert "mine.yaml:2" in shown


def test_check_shows_files_and_lines() -> None:
    shown = output(0, "check", "mine.yaml")
    assert "fake (base/base.yaml:2)" in shown
    assert "4  mine.yaml:4" in shown
    found = json.loads(invoke("check", "mine.yaml", "--json").stdout)
    assert found["sources"]["max_steps"] == "mine.yaml:2"
    assert found["adapter_sources"]["training"] == "base/base.yaml:2"


def test_settings_belong_to_the_chosen_adapter(files: Path) -> None:
    text = "adapters.training: peft\nadapter_settings.training.device: cpu\n"
    (files / "peft.yaml").write_text(text)
    changed = resolved("recipes.sl_basic", configs=("peft.yaml", "mine.yaml"))
    assert changed.problems == []
    assert changed.names["training"] == "fake"
    assert "training" not in changed.adapter_settings
    typed = resolved("recipes.sl_basic", configs=("peft.yaml",), training="fake")
    assert typed.problems == []
    assert "training" not in typed.adapter_settings
    same = resolved("recipes.sl_basic", configs=("peft.yaml",), training="peft")
    assert same.adapter_settings["training"] == {"device": "cpu"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epoch: 3", "1: recipes.sl_basic has no setting 'epoch'; did you mean 'epochs'?"),
        ("\nrecipee: x", "2: recipes.sl_basic has no setting 'recipee'; did you mean 'recipe'"),
        ("training: fake", "1: recipes.sl_basic has no setting 'training'; did you mean 'adapter"),
        ("training.device: cpu", "did you mean 'adapter_settings.training'"),
        ("adapters: {trainig: fake}", "1: there is no port 'trainig'; did you mean 'training'"),
        ("adapters:\n  training: fak", "2: there is no training adapter 'fak'; did you mean 'fak"),
        ("adapters: fake", "bad.yaml:1: adapters=fake"),
        ("adapters: {training: {name: fake}}", "bad.yaml:1: adapters.training.name=fake"),
        ("adapter_settings:\n  hub:\n    timeou: 1", "3: the hub adapter 'hf' has no setting"),
        ("adapter_settings:\n  hub:\n    timeout: x", "bad.yaml:3: hub.timeout=x"),
        ("adapter_settings: {training: fake}", "bad.yaml:1: adapter_settings.training=fake"),
        ("extends: none.yaml", "bad.yaml:1: extends: there is no file none.yaml"),
        ("extends: ''", "bad.yaml:1: extends is empty"),
        ('extends: "a\\0b"', "bad.yaml:1: extends is empty"),
        ("extends: [base/base.yaml]", "1: extends=[base/base.yaml]: extends must be"),
        ("recipe: 3", "bad.yaml:1: recipe=3"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line(text: str, expected: str) -> None:
    [problem] = problems(text)
    assert expected in problem
    assert problem.startswith("bad.yaml:")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epochs: 3", "bad.yaml names no recipe"),
        ("", "bad.yaml names no recipe"),
        ("recip: recipes.sl_basic", "bad.yaml:1: 'recip' is unknown; did you mean 'recipe'?"),
        ("epochs: [", "bad.yaml:1: not YAML"),
    ],
)
def test_a_file_that_is_run_names_a_recipe(text: str, expected: str) -> None:
    Path("bad.yaml").write_text(text)
    with pytest.raises(Problems) as error:
        resolved("bad.yaml")
    assert str(error.value).startswith(expected)


def test_an_unknown_recipe_is_reported_with_its_line() -> None:
    Path("bad.yaml").write_text("epochs: 1\nrecipe: recipes.sl_basc\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml:2: there is no recipe .* did you mean"):
        resolved("bad.yaml")
    with pytest.raises(Problems, match=r"none\.yaml: No such file"):
        resolved("none.yaml")


def test_the_typed_store_overrides_that_of_a_file(files: Path) -> None:
    (files / "store.yaml").write_text("adapters.blobs: local\nadapter_settings.blobs.root: kept\n")
    found = read_run_files([Path("store.yaml")])
    assert found.choice(AdapterChoice({})).store_options() == " --runs kept --blobs local"
    typed = found.choice(AdapterChoice({}, runs="other"))
    assert typed.store_options() == " --runs other --blobs local"
    assert typed.file_settings == ()
    assert found.choice(AdapterChoice({}, runs="memory://x")).chosen()["blobs"] == "fsspec"


def test_files_must_not_extend_each_other(files: Path) -> None:
    (files / "base/base.yaml").write_text("extends: middle.yaml\n")
    (files / "base/middle.yaml").write_text("extends: ../mine.yaml\n")
    [problem] = read_run_files([Path("mine.yaml")]).problems
    assert str(problem).startswith("base/middle.yaml:1: files extend each other in a circle:")
    circle = "mine.yaml -> base/base.yaml -> base/middle.yaml -> base/../mine.yaml"
    assert circle in str(problem)


def test_a_chain_of_files_may_share_a_base(files: Path) -> None:
    (files / "other.yaml").write_text("extends: mine.yaml\nepochs: 2\n")
    found = read_run_files([Path("mine.yaml"), Path("other.yaml")])
    assert found.problems == []
    assert [setting.value for setting in found.settings] == [40, 3, 2, 4, 40, 3, 2, 4, 2]


def test_a_mapping_of_an_adapter_is_one_setting(files: Path) -> None:
    text = "adapters.training: tinker\nadapter_settings.training.metadata: {a.b: c, d: e}\n"
    (files / "one.yaml").write_text(text)
    (files / "two.yaml").write_text("adapter_settings: {training: {metadata: {d: f}}}\n")
    found = read_run_files([Path("one.yaml"), Path("two.yaml")])
    [setting] = found.choice(AdapterChoice({})).file_settings
    assert setting.value == {"a.b": "c", "d": "f"}


def test_a_key_of_files_may_not_hide_a_setting(files: Path) -> None:
    (files / "recipes").mkdir()
    (files / "recipes/hidden.py").write_text(
        "from kitchen import Recipe, Step, sequence\n"
        "class Hidden(Recipe):\n"
        "    extends: str = ''\n"
        "    def workflow(self) -> Step:\n"
        "        return sequence()\n"
    )
    found = resolved("recipes.hidden", configs=("mine.yaml",)).problems
    assert "mine.yaml:1: recipes.hidden has a setting 'extends'" in str(found[0])

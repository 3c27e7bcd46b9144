"""The Python API: recipes, settings and adapters of new and resumed runs."""

from __future__ import annotations

import json
import re
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from kitchen import Recipe
from kitchen.config.request import Problems
from kitchen.config.trust import NotTrusted
from kitchen.errors import ConfigError, Interrupted, RunFailed
from kitchen.runs.store import read_run
from recipes.sl_basic import SlBasic
from tests.support.commands import invoke
from tests.support.stew import GREETINGS, SMALL, Stew, cancelled_at, rows

pytestmark = pytest.mark.usefixtures("here")


def test_a_yaml_file_is_run_as_on_the_command_line(here: Path) -> None:
    (here / "base.yaml").write_text("recipe: recipes.sl_basic\nmax_steps: 3\nseed: 4\n")
    (here / "my.yaml").write_text(
        "extends: base.yaml\nmax_steps: 2\nreading: {limit: 20}\nevaluation: {max_tokens: 4}\n"
        "adapters: {training: fake}\nadapter_settings: {blobs: {root: elsewhere}}\n"
    )
    outcome = kitchen.run("my.yaml", settings={"batch_size": 4}, name="mine")
    assert invoke("run", "my.yaml", "batch_size=4", "--name", "typed").exit_code == 0
    record, typed = (
        json.loads((here / "elsewhere" / name / "run.json").read_text())["order"]
        for name in ("mine", "typed")
    )
    assert record["settings"] == typed["settings"]
    assert record["adapters"] == typed["adapters"]
    assert record["sources"]["max_steps"] == "my.yaml:2"
    assert record["sources"]["seed"] == "base.yaml:3"
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.step == 2
    other = kitchen.run("my.yaml", settings={"max_steps": 1}, blobs=FakeBlobs(), runs=None)
    assert other.metrics["loss"] == pytest.approx(5.5, abs=0.5)


def test_mistakes_in_a_yaml_file_name_the_line(here: Path) -> None:
    (here / "my.yaml").write_text(
        "recipe: recipes.sl_basic\nepochs: many\nadapters: {traning: x}\n"
    )
    with pytest.raises(Problems) as caught:
        kitchen.submit("my.yaml")
    assert "my.yaml:2" in str(caught.value)
    assert "my.yaml:3" in str(caught.value)
    with pytest.raises(Problems, match=r"nothing\.yaml"):
        kitchen.submit("nothing.yaml")


def test_name_class_and_instance_give_the_same_run() -> None:
    by_name = kitchen.run("recipes.sl_basic", **GREETINGS)
    by_class = kitchen.run(
        SlBasic, **{**GREETINGS, "settings": {**SMALL, "evaluation.max_tokens": 4}}
    )
    recipe = SlBasic.model_validate(SMALL)
    by_instance = kitchen.run(
        recipe, training="fake", datasets="fake", runs="elsewhere", name="mine"
    )
    assert rows(by_name) == rows(by_class) == rows(by_instance)
    assert by_name.metrics["loss"] == by_name.loss is not None
    assert by_instance.where.endswith("/elsewhere/mine")
    assert by_instance.checkpoint is not None
    assert (Path(by_instance.where).parent / by_instance.checkpoint.path).exists()
    sources = json.loads(Path(by_instance.where, "run.json").read_text())["order"]["sources"]
    assert (sources["batch_size"], sources["seed"]) == ("recipe", "default")


def test_all_problems_are_raised_before_anything_starts(here: Path) -> None:
    with pytest.raises(Problems) as found:
        kitchen.submit(
            "recipes.sl_basic",
            settings={"max_step": 1, "rendering": {"max_token": 2}, "batch_size": 0},
            training="fak",
            adapter_settings={"hubb": {}},
        )
    assert str(found.value).splitlines() == [
        "settings: recipes.sl_basic has no setting 'max_step'; did you mean 'max_steps' or "
        "'warmup_steps'?",
        "settings: recipes.sl_basic has no setting 'rendering.max_token'; did you mean "
        "'max_tokens'?",
        "settings: batch_size=0: input should be greater than 0",
        "there is no training adapter 'fak'; did you mean 'fake'?",
        "adapter_settings: there is no port 'hubb'; did you mean 'hub'?",
    ]
    assert found.value.exit_code == 2
    with pytest.raises(ConfigError, match=r"did you mean 'recipes\.sl_basic'"):
        kitchen.submit("recipes.sl_basik")
    with pytest.raises(ConfigError, match="Recipe is not a recipe"):
        kitchen.submit(Recipe, training="fake")
    with pytest.raises(Problems, match=r"data set 'nowhere' is unknown"):
        kitchen.submit(SlBasic(dataset="nowhere"), training="fake", datasets="fake")
    with pytest.raises(
        Problems, match=r"the recipe is an instance already.*or pass the class SlBasic"
    ):
        kitchen.submit(SlBasic(), settings={"seed": 1}, training="fake")
    with pytest.raises(Problems, match="the blobs adapter is an object that is set up already"):
        kitchen.submit(SlBasic, training="fake", blobs=FakeBlobs(), runs="elsewhere")
    assert not (here / "runs").exists()


def test_taken_name_is_refused() -> None:
    kitchen.run(Stew, training="fake", name="mine")
    with pytest.raises(Problems, match="there is a run 'mine' already"):
        kitchen.submit(Stew, training="fake", name="mine")


def test_adapter_objects_are_injected_into_named_adapters() -> None:
    blobs, data = FakeBlobs(), FakeDatasets()
    outcome = kitchen.run(SlBasic, settings=SMALL, training="fake", datasets=data, blobs=blobs)
    assert outcome.checkpoint is not None
    assert blobs.list(outcome.checkpoint.path), "the training adapter keeps its weights there too"
    adapters = read_run(blobs, outcome.run)["order"]["adapters"]
    assert adapters["blobs"] == "adapters.fake.blobs:FakeBlobs"
    assert kitchen.resume(outcome.run, blobs=blobs).result() == outcome, (
        "it is completed: nothing is done again"
    )


def test_resume_requires_objects_built_with_arguments() -> None:
    chats = FakeDatasets({"greetings": {"train": [{"prompt": "hi", "completion": "ho"}] * 20}})
    run = cancelled_at(2, SlBasic, settings=SMALL, training="fake", datasets=chats, name="mine")
    with pytest.raises(Interrupted) as stopped:
        run.result()
    assert stopped.value.__notes__[-1] == "to resume: kitchen.resume('mine', datasets=...)"
    why = r"run 'mine': the datasets adapter was an object of adapters\.fake\.datasets:FakeDatasets"
    with pytest.raises(
        Problems,
        match=rf"{why}.*pass the object again, datasets=\.\.\.",
    ):
        kitchen.resume("mine")
    refused = invoke("resume", "mine")
    assert refused.exit_code == 2
    assert re.search(
        rf"{why}.*in Python, kitchen\.resume\('mine', datasets=\.\.\.\)",
        refused.output,
    )
    assert kitchen.resume("mine", datasets=chats).result().loss is not None


class Plain(FakeDatasets):
    """It takes no arguments, so that its name is enough to rebuild it."""

    def __init__(self) -> None:
        super().__init__()


def test_resume_rebuilds_objects_without_arguments() -> None:
    run = cancelled_at(2, SlBasic, settings=SMALL, training="fake", datasets=Plain())
    with pytest.raises(Interrupted):
        run.result()
    with pytest.raises(NotTrusted, match=f"datasets adapter {__name__}:Plain"):
        kitchen.resume(run.id)
    assert kitchen.resume(run.id, trust=True).result().loss is not None


@pytest.mark.parametrize(
    "asked, note",
    [
        (
            {"adapter_settings": {"blobs": {"root": "there"}}},
            "kitchen.resume('mine', runs='there')",
        ),
        (
            {"runs": "there", "blobs": "local"},
            "kitchen.resume('mine', runs='there', blobs='local')",
        ),
        ({"blobs": FakeBlobs()}, "kitchen.resume('mine', blobs=...)"),
        ({"blobs": "fake"}, None),
        ({"runs": "memory://me:hunter22@there"}, None),
    ],
)
def test_resume_call_in_the_note_resumes_the_run(asked: dict[str, Any], note: str | None) -> None:
    run = kitchen.submit(Stew(spoil="salt"), training="fake", name="mine", **asked)
    with pytest.raises(RunFailed) as error:
        run.result()
    assert error.value.__notes__[1:] == ([f"to resume: {note}"] if note else [])
    if note and "..." not in note:
        with pytest.raises(RunFailed, match="no salt left"):
            eval(note, {"kitchen": kitchen}).result()


def test_errors_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-s3cr3t")
    with pytest.raises(RunFailed) as failed:
        kitchen.submit(Stew(spoil="s3cr3t-s3cr3t"), training="fake", blobs=FakeBlobs()).result()
    assert "s3cr3t" not in "".join(traceback.format_exception(failed.value)).replace(
        'spoil="s3cr3t-s3cr3t"', ""
    )
    with pytest.raises(ConfigError) as refused:
        kitchen.resume("s3://me:s3cr3t@host/mine")
    assert "s3cr3t" not in str(refused.value)
    with pytest.raises(Problems) as problems:
        kitchen.submit(Stew, training="s3cr3t-s3cr3t")
    assert "s3cr3t" not in str(problems.value) + str(problems.value.problems)


def test_run_leased_by_another_host_needs_take_over(here: Path) -> None:
    with pytest.raises(RunFailed):
        kitchen.run(Stew(spoil="salt"), training="fake", name="mine")
    (here / "runs/mine/lease").mkdir(exist_ok=True)
    (here / "runs/mine/lease/a.json").write_text(
        json.dumps({"host": "elsewhere", "pid": 1, "born": "2"})
    )
    with pytest.raises(ConfigError, match=r"in use by process 1 on elsewhere") as error:
        kitchen.resume("mine").result()
    assert error.value.__notes__ == [
        "to resume nevertheless: kitchen.resume('mine', take_over=True)"
    ]
    with pytest.raises(RunFailed, match="no salt left"):
        kitchen.resume("mine", take_over=True).result()


@pytest.mark.parametrize(
    "columns",
    [
        {"reading": {"columns": {"meta.q": "prompt"}}},
        {"reading.columns": {"meta.q": "prompt"}},
        {"reading.columns.meta.q": "prompt"},
    ],
)
def test_column_name_may_contain_a_dot(columns: dict[str, Any]) -> None:
    rows = FakeDatasets(
        {"menu": {"train": [{"meta.q": f"{number}?", "completion": "ho"} for number in range(20)]}}
    )
    settings = {**SMALL, "dataset": "menu", "max_steps": 1, **columns}
    outcome = kitchen.run(
        SlBasic, settings=settings, training="fake", datasets=rows, blobs=(blobs := FakeBlobs())
    )
    assert read_run(blobs, outcome.run)["order"]["settings"]["reading"]["columns"] == {
        "meta.q": "prompt"
    }


def test_public_names_and_the_version_are_listed() -> None:
    assert set(kitchen.__all__) < set(dir(kitchen))
    assert kitchen.__version__ == version("crucible-kitchen")

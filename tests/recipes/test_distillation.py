"""distillation on the fake: the student learns its teacher's answers to its own prompts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Observer
from kitchen.errors import ConfigError, KitchenError, ResumeError, RunFailed
from kitchen.runs.store import read_run
from recipes.distillation import Distillation
from recipes.sl_basic import SlBasic
from tests.support.killing import KillAt
from tests.support.recording import RecordingObserver

TEACHERS = {"braces": "{}", "letters": "xy"}  # data set: the answer in all of its rows


def splits(answer: str) -> dict[str, Any]:
    rows = [{"prompt": "?", "completion": answer}] * 4
    return {"train": rows, "held": rows[:2]}


DATA = FakeDatasets({"right": splits("{}")})


def teach(
    blobs: FakeBlobs, data: FakeDatasets, dataset: str, run: str, *, epochs: int, rate: float
) -> None:
    """Train a teacher on a data set."""
    recipe = SlBasic(
        model="any",
        dataset=dataset,
        batch_size=4,
        epochs=epochs,
        learning_rate=rate,
        eval_every=0,
        schedule="constant",
        warmup_steps=0,
    )
    kitchen.run(recipe, training=FakeTraining(blobs), datasets=data, blobs=blobs, name=run)


@pytest.fixture(scope="module")
def blobs() -> FakeBlobs:
    """Return a store with one run that has learnt the answer and one that has partly learnt it."""
    blobs = FakeBlobs()
    teach(blobs, DATA, "right", "taught", epochs=60, rate=0.02)
    teach(blobs, DATA, "right", "partly-taught", epochs=10, rate=0.02)
    return blobs


def cook(
    blobs: FakeBlobs,
    name: str,
    *observers: Observer,
    data: FakeDatasets = DATA,
    **settings: Any,
) -> RecordingObserver:
    seen = RecordingObserver()
    defaults = {
        "model": "run:partly-taught",
        "batch_size": 4,
        "group": 8,
        "steps": 40,
        "learning_rate": 0.1,
        "playing": {"max_tokens": 4},
        "evaluation": {"max_tokens": 4},
    }
    if "teachers" not in settings:
        defaults |= {"teacher": "run:taught", "dataset": "right"}
    kitchen.run(
        Distillation(**{**defaults, **settings}),
        training=FakeTraining(blobs),
        datasets=data,
        blobs=blobs,
        name=name,
        observers=[seen, *observers],
    )
    return seen


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"discount": 0.5, "group": 32},
        {"updates": 2},
        {"policy_lag": 1},
        {"divergence": "forward"},
        {"divergence": "forward", "updates": 2, "top_k": 3, "policy_lag": 1},
    ],
)
def test_the_student_learns_the_teachers_answers(
    blobs: FakeBlobs, settings: Any, request: pytest.FixtureRequest
) -> None:
    seen = cook(blobs, request.node.callspec.id, **settings)
    before, after = seen.series("kl_per_token_before")[0], seen.series("kl_per_token")[0]
    assert before > 0.5
    assert abs(after) < 0.2 * before
    assert seen.series("held/exact_match_after") == [1.0]


def test_the_divergence_of_each_batch_is_reported(blobs: FakeBlobs) -> None:
    divergences = cook(blobs, "reported").series("kl_teacher")
    assert len(divergences) == 40
    assert abs(sum(divergences[-5:])) < 0.2 * sum(divergences[:5])


def test_forward_loss_is_kl_plus_teacher_entropy(blobs: FakeBlobs) -> None:
    seen = cook(blobs, "forward", divergence="forward", top_k=200)
    divergences = [
        loss - entropy
        for loss, entropy in zip(seen.series("loss"), seen.series("teacher_entropy"), strict=True)
    ]
    assert min(divergences) > -1e-6
    assert divergences[-1] < 0.2 * divergences[0]
    assert min(seen.series("teacher_mass")) > 0.9
    assert seen.series("trained_tokens") == seen.series("sampled_tokens")


def test_the_teachers_weights_are_recorded_as_facts(
    blobs: FakeBlobs,
) -> None:
    cook(blobs, "recorded", steps=1)
    facts = read_run(blobs, "recorded")["facts"]
    assert (facts["teacher"], facts["teacher.model"]) == ("run:taught@final", "any")
    [taught] = FakeTraining(blobs).checkpoints("taught/weights/final")
    assert facts["teacher.sha256"] == taught.sha256 != ""


def test_a_run_with_another_teacher_is_not_resumed(blobs: FakeBlobs, tmp_path: Path) -> None:
    training, folder = FakeTraining(blobs), tmp_path / "teacher"
    [right] = training.checkpoints("taught/weights/final")
    [other] = training.checkpoints("partly-taught/weights/final")
    training.export(right, folder)
    with pytest.raises(RunFailed, match="Killed"):
        cook(blobs, "stopped", KillAt(20), steps=3, teacher=f"path:{folder}")
    shutil.rmtree(folder)
    training.export(other, folder)
    with pytest.raises(ResumeError, match=r"began with teacher\.sha256"):
        kitchen.resume("stopped", training=training, datasets=DATA, blobs=blobs).finish()


def test_a_missing_teacher_is_an_error(blobs: FakeBlobs) -> None:
    with pytest.raises(KitchenError, match="taught"):
        cook(blobs, "mistyped", teacher="run:tought")
    with pytest.raises(ConfigError, match="there is no teacher"):
        Distillation().workflow()


def test_each_data_set_has_its_own_teacher(blobs: FakeBlobs) -> None:
    data = FakeDatasets({name: splits(answer) for name, answer in TEACHERS.items()})
    for name in TEACHERS:
        teach(blobs, data, name, f"taught-{name}", epochs=60, rate=0.05)
    teachers = {name: f"run:taught-{name}" for name in TEACHERS}
    seen = cook(
        blobs,
        "of-two",
        data=data,
        model="any",
        teachers=teachers,
        steps=3,
        learning_rate=0.05,
        divergence="forward",
    )
    assert {name for name in seen.metric_names() if name.startswith("kl_per")} == {
        "kl_per_token/braces",
        "kl_per_token/letters",
        "kl_per_token_before/braces",
        "kl_per_token_before/letters",
    }
    facts = read_run(blobs, "of-two")["facts"]
    assert {name: facts[f"teacher.{name}"] for name in TEACHERS} == {
        name: f"{teacher}@final" for name, teacher in teachers.items()
    }
    assert seen.series("loss")[-1] < seen.series("loss")[0]


def test_a_recipe_with_teachers_is_rebuilt_from_its_settings() -> None:
    recipe = Distillation(teachers={"braces": "run:taught-braces"})
    assert Distillation(**recipe.model_dump()).workflow() == recipe.workflow()


def test_prompts_and_held_out_rows_are_rendered_alike(blobs: FakeBlobs) -> None:
    with pytest.raises(ConfigError, match=r"rendering\.chat=false"):
        Distillation(teacher="any", rendering={"chat": False}).workflow()

"""dpo on the fake: it learns preferences, samples rejected answers and uses its reference."""

from __future__ import annotations

from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Observer, Recipe, Table
from kitchen.errors import DataError, KitchenError
from recipes.dpo import Dpo
from recipes.sl_basic import SlBasic
from tests.support.recording import RecordingObserver

PAIRS = [
    {"prompt": "?", "chosen": "{}", "rejected": text} for text in ("[]", "()", "no", "{x}")
] * 2
RIGHT = [{"prompt": "?", "completion": "{}"}] * 6
DATA = FakeDatasets(
    {
        "pairs": {"train": PAIRS, "held": PAIRS[:3]},
        "right": {"train": RIGHT, "held": RIGHT[:2]},
        "chats": {"train": RIGHT},
        "half": {"train": PAIRS, "held": RIGHT[:2]},
    }
)


def cook(blobs: FakeBlobs | None = None, name: str = "run", **settings: Any) -> RecordingObserver:
    seen, blobs = RecordingObserver(), blobs or FakeBlobs()
    defaults = {
        "dataset": "pairs",
        "batch_size": 4,
        "epochs": 10,
        "learning_rate": 0.3,
        "eval_every": 5,
    }
    run_on_fake(Dpo(**{**defaults, **settings}), blobs, name, seen)
    return seen


def run_on_fake(recipe: Recipe, blobs: FakeBlobs, name: str, *observers: Observer) -> None:
    kitchen.run(
        recipe,
        training=FakeTraining(blobs),
        datasets=DATA,
        blobs=blobs,
        name=name,
        observers=observers,
    )


def test_it_learns_to_prefer() -> None:
    seen = cook()
    losses, accuracy = seen.series("loss"), seen.series("accuracy")
    assert len(losses) == 20
    assert losses[0] == pytest.approx(0.6931, abs=1e-4), "the policy begins at its reference"
    assert losses[-1] < 0.7 * losses[0]
    assert (accuracy[0], accuracy[-1]) == (0.0, 1.0)
    assert seen.series("held/pair_accuracy") == [1.0]
    assert seen.series("margin")[-1] == pytest.approx(
        seen.series("chosen_reward")[-1] - seen.series("rejected_reward")[-1], abs=1e-5
    )
    assert len(seen.series("held_out_accuracy")) == 4
    assert seen.series("kl")[0] > 0
    assert any(
        isinstance(value, Table) and value.title.startswith("Held-out pairs")
        for value in seen.published
    )


@pytest.mark.parametrize("loss", ["sigmoid", "simpo"])
def test_a_missing_reference_is_an_error_before_training(loss: str) -> None:
    blobs = FakeBlobs()
    with pytest.raises(KitchenError, match="nowhere"):
        cook(blobs, loss=loss, reference="run:nowhere")
    assert not blobs.list("")


@pytest.mark.parametrize("loss", ["simpo", "orpo"])
def test_it_learns_without_a_reference(loss: str) -> None:
    seen = cook(loss=loss)
    assert seen.series("loss")[-1] < 0.7 * seen.series("loss")[0]
    assert seen.series("held/pair_accuracy") == [1.0]
    assert seen.series("chosen_nats")[-1] < seen.series("chosen_nats")[0]


def test_missing_rejected_answers_are_sampled() -> None:
    seen = cook(dataset="right", batch_size=3, epochs=6)
    texts = seen.sampled_texts("mistake")
    assert texts
    assert "{}" not in texts
    assert seen.series("data/pairs")[0] >= 1
    assert seen.series("loss")[-1] < seen.series("loss")[0]


def test_another_reference_gives_another_loss() -> None:
    blobs = FakeBlobs()
    run_on_fake(
        SlBasic(dataset="right", batch_size=2, epochs=3, learning_rate=0.3, eval_every=0),
        blobs,
        "first",
    )
    itself = cook(blobs, "itself", max_steps=1)
    other = cook(blobs, "other", max_steps=1, reference="run:first")
    assert itself.series("loss")[0] == pytest.approx(0.6931, abs=1e-4)
    assert abs(other.series("loss")[0] - itself.series("loss")[0]) > 0.01


def test_a_model_that_is_never_wrong_is_an_error() -> None:
    blobs = FakeBlobs()
    run_on_fake(
        SlBasic(
            dataset="right",
            batch_size=6,
            epochs=150,
            learning_rate=0.5,
            eval_every=0,
            schedule="constant",
        ),
        blobs,
        "perfect",
    )
    with pytest.raises(DataError, match=r"mistakes\.tries"):
        cook(blobs, "none", dataset="right", model="run:perfect")


def test_held_out_rows_without_rejections_are_an_error() -> None:
    with pytest.raises(
        DataError, match=r"^nothing to evaluate on: held: (\d+) of \1 rows have no rejected answer"
    ):
        cook(dataset="half", mistakes={"max_tokens": 1})

"""kto on the fake: it learns from labels, from comparisons and from sampled bad answers."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from recipes.kto import Kto
from tests.support.recording import RecordingObserver, observed_run

LABELS = [
    {"prompt": "?", "completion": text, "label": text == "{}"} for text in ("{}", "[]", "{}", "no")
] * 2
PAIRS = [{"prompt": "?", "chosen": "{}", "rejected": text} for text in ("[]", "()", "no", "{x}")]
RIGHT = [{"prompt": "?", "completion": "{}"}] * 6
DATA = FakeDatasets(
    {
        "labels": {"train": LABELS, "held": LABELS[:4]},
        "pairs": {"train": PAIRS, "held": PAIRS[:2]},
        "right": {"train": RIGHT, "held": RIGHT[:2]},
    }
)


def cook(**settings: Any) -> RecordingObserver:
    defaults = {"batch_size": 8, "epochs": 16, "learning_rate": 0.3, "eval_every": 5}
    return observed_run(Kto(**{**defaults, **settings}), DATA)


@pytest.mark.parametrize("dataset", ["labels", "pairs"])
def test_it_learns_what_is_good(dataset: str) -> None:
    seen = cook(dataset=dataset)
    losses = seen.series("loss")
    assert losses[0] == pytest.approx(0.5, abs=1e-4), (
        "the policy starts at its reference, where each loss is 1 / 2"
    )
    assert losses[-1] < 0.8 * losses[0]
    assert (
        seen.series("good_reward")[-1]
        > seen.series("good_reward")[0]
        > seen.series("bad_reward")[-1]
    )
    assert seen.series("held/answer_accuracy") == [1.0]
    assert any(table.title.startswith("Held-out answers") for table in seen.tables)


def test_missing_bad_answers_are_sampled() -> None:
    seen = cook(dataset="right", batch_size=3, epochs=6)
    assert seen.series("data/good") == [6.0]
    assert seen.series("data/answers")[0] > 6
    assert seen.series("loss")[-1] < seen.series("loss")[0]

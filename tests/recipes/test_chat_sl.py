"""chat_sl on the fake: each data set of a mixture is learnt, and its loss is reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adapters.fake.datasets import FakeDatasets
from kitchen.errors import ConfigError, KitchenError
from recipes.chat_sl import ChatSl
from stages.evaluate.evaluation import EvalConfig
from tests.support.recording import RecordingObserver, observed_run


def chats(text: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": text},
                {"role": "user", "content": str(n)},
                {"role": "assistant", "content": text},
            ]
        }
        for n in range(count)
    ]


DATA = FakeDatasets(
    {
        "greetings": {"train": chats("hello", 6), "held": chats("hello", 2)},
        "farewells": {"train": chats("so long", 12)},
    }
)


def cook(**settings: Any) -> RecordingObserver:
    defaults = {
        "mixture": {"greetings": 2.0, "farewells": 1.0},
        "batch_size": 3,
        "steps": 20,
        "learning_rate": 0.3,
        "warmup_steps": 0,
        "eval_every": 10,
    }
    return observed_run(ChatSl(**{**defaults, **settings}), DATA)


def test_each_data_set_is_learnt() -> None:
    seen = cook()
    for name in ("greetings", "farewells"):
        losses = seen.series(f"loss/{name}")
        assert len(losses) == 20
        assert losses[-1] < 0.5 * losses[0]
    both = 2 * 2 * 6 * np.array(seen.series("loss/greetings")) + 2 * 8 * np.array(
        seen.series("loss/farewells")
    )
    np.testing.assert_allclose(
        seen.series("loss"), both / 40, rtol=1e-4, err_msg="answers of 6 and 8 tokens"
    )
    assert len(seen.series("held_out_loss")) == 2


def test_at_least_needs_graded_answers() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.metric"):
        EvalConfig(metric="loss", at_least=0.5)
    with pytest.raises(
        KitchenError, match=r"at_least=0\.5 requires an exact match on greetings/held"
    ):
        cook(evaluation={"metric": "auto", "at_least": 0.5}, steps=1)


def test_held_out_sets_are_reported_in_nats_and_bits() -> None:
    seen = cook()
    for name in ("greetings/held", "farewells/held_out"):
        before, after = (seen.series(f"{name}/loss_{when}")[0] for when in ("before", "after"))
        assert after < 0.5 * before
        bits = seen.series(f"{name}/bits_per_byte_after")[0]
        tokens = (
            (len("hello") + 1) / len("hello")
            if "greet" in name
            else (len("so long") + 1) / len("so long")
        )
        assert bits == pytest.approx(after / np.log(2) * tokens, rel=1e-5), (
            "one byte per token, and a stop token without bytes"
        )

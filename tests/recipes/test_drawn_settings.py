"""Drawn settings are refused before a run, or the run completes: nothing is found out late."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from tests.support.drawn_settings import drawn_settings, fault_of
from tests.support.killed_runs import RECIPES

pytestmark = pytest.mark.usefixtures("letters")
ONE_STEP: dict[str, dict[str, Any]] = {
    "sl_basic": {"dataset": "chats", "max_steps": 1},
    "chat_sl": {"mixture": {"chats": 1.0}, "steps": 1},
    "dpo": {"dataset": "pairs", "max_steps": 1},
    "kto": {"dataset": "pairs", "max_steps": 1},
    "rl": {"dataset": "chats", "steps": 1},
    "rlhf": {"preferences": "pairs", "steps": 1},
    "distillation": {"dataset": "chats", "teacher": "teacher", "steps": 1},
    "distillation_off_policy": {"dataset": "chats", "teacher": "teacher", "max_steps": 1},
    "evaluate": {"dataset": "chats"},
}
SMALL = {
    "model": "model",
    "weights": "model",
    "batch_size": 2,
    "group": 2,
    "lora_rank": 2,
    "playing.max_tokens": 3,
    "evaluation.max_tokens": 3,
    "writing.tries": 8,
    "writing.max_tokens": 100,
}
LIMITS = settings(
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
few, many = settings(LIMITS, max_examples=12), settings(LIMITS, max_examples=400)


def check_fake(recipe: str, draw: st.DataObject) -> None:
    cls = RECIPES[recipe][0]
    small = {name: value for name, value in SMALL.items() if _has(cls, name)}
    drawn = draw.draw(drawn_settings(cls, {**small, **ONE_STEP[recipe]}))
    blobs = FakeBlobs()
    assert fault_of(cls, drawn, FakeTraining(blobs), blobs) == ""


def _has(cls: Any, name: str) -> bool:
    return name.partition(".")[0] in cls.model_fields


@pytest.mark.parametrize("recipe", ONE_STEP)
@few
@given(draw=st.data())
def test_drawn_settings_run_or_are_refused(recipe: str, draw: st.DataObject) -> None:
    check_fake(recipe, draw)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ONE_STEP)
@many
@given(draw=st.data())
def test_many_drawn_settings_run_or_are_refused(recipe: str, draw: st.DataObject) -> None:
    check_fake(recipe, draw)

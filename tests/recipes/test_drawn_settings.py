"""Drawn settings are refused before a run, or the run completes: nothing is found out late."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from adapters.local.blobs import LocalBlobs
from tests.support.drawn_settings import drawn_settings, fault_of
from tests.support.killed_runs import MODELS, RECIPES, training_client

pytestmark = pytest.mark.usefixtures("letters")
ONE_STEP: dict[str, dict[str, Any]] = {
    "sl_basic": {"dataset": "chats", "max_steps": 1},
    "chat_sl": {"mixture": {"chats": 1.0}, "steps": 1},
    "dpo": {"dataset": "pairs", "max_steps": 1},
    "claim_extraction": {"dataset": "claims", "max_steps": 1},
    "kto": {"dataset": "pairs", "max_steps": 1},
    "rl": {"dataset": "chats", "steps": 1},
    "rlhf": {"preferences": "pairs", "steps": 1},
    "distillation": {"dataset": "chats", "teacher": "teacher", "steps": 1},
    "distillation_off_policy": {"dataset": "chats", "teacher": "teacher", "max_steps": 1},
    "evaluate": {"dataset": "chats"},
    "ensemble": {"dataset": "chats", "members": list(MODELS), "evaluation.metric": "text"},
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
few, many = settings(LIMITS, max_examples=12), settings(LIMITS, max_examples=250)


def check_fake(recipe: str, draw: st.DataObject) -> None:
    cls = RECIPES[recipe][0]
    drawn = draw.draw(drawn_settings(cls, small_settings(recipe)))
    blobs = FakeBlobs()
    assert fault_of(cls, drawn, FakeTraining(blobs), blobs) == ""


def small_settings(recipe: str) -> dict[str, Any]:
    """Return settings of a run of one small step."""
    fields = RECIPES[recipe][0].model_fields
    small = {name: value for name, value in SMALL.items() if name.partition(".")[0] in fields}
    return {**small, **ONE_STEP[recipe]}


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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of the local engine."""
    pytest.importorskip("torch")
    from tests.support.tiny_model import tiny_model

    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(MODELS):
        tiny_model(folder / name, seed=seed)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["sl_basic", "dpo", "rl"])
@settings(LIMITS, max_examples=25)
@given(draw=st.data())
def test_drawn_settings_run_on_the_local_engine(
    tiny: Path, recipe: str, draw: st.DataObject
) -> None:
    cls = RECIPES[recipe][0]
    names = {name: f"path:{tiny / name}" for name in MODELS}
    drawn = draw.draw(drawn_settings(cls, small_settings(recipe)))
    local = {name: names.get(str(value), value) for name, value in drawn.items()}
    blobs = LocalBlobs(tempfile.mkdtemp(dir=tiny))
    assert fault_of(cls, local, training_client("peft", blobs, tiny), blobs) == ""

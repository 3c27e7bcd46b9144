"""The recipe of docs/exercise.md: it is short, learns, and resumes to the last bit."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen.errors import Interrupted
from tests.support.pages import ROOT, page_files
from tests.support.recording import RecordingObserver, numbers
from tests.support.stew import cancelled_at

CODE = page_files(ROOT / "docs/exercise.md")["recipes/raft.py"]
ROWS = [{"prompt": "?", "completion": "{}"}] * 4
DATA = FakeDatasets({"right": {"train": ROWS, "held": ROWS[:2]}})
SETTINGS = {
    "dataset": "right",
    "reward": "letters",
    "batch_size": 4,
    "group": 16,
    "steps": 20,
    "learning_rate": 0.1,
    "save_every": 4,
    "playing": {"max_tokens": 3},
}


@pytest.fixture
def raft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letters: None) -> Iterator[Any]:
    """Return the recipe's class."""
    (tmp_path / "raft.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("raft").Raft
    del sys.modules["raft"]  # not by monkeypatch, which would put it back


def adapters(blobs: FakeBlobs) -> dict[str, Any]:
    return {"training": FakeTraining(blobs), "datasets": DATA, "blobs": blobs}


def test_it_is_short() -> None:
    assert len(CODE.splitlines()) < 50
    stage = next(
        node
        for node in ast.parse(CODE).body
        if isinstance(node, ast.ClassDef) and node.name == "BestOfGroup"
    )
    assert (stage.end_lineno or 0) - stage.lineno < 25


def test_it_learns_what_is_rewarded(raft: Any) -> None:
    observer = RecordingObserver()
    kitchen.run(raft(**SETTINGS), **adapters(FakeBlobs()), observers=[observer])
    rewards = observer.series("reward")
    assert len(rewards) == 20
    assert sum(rewards[-5:]) / 5 > rewards[0] + 0.2, rewards
    assert observer.series("held/reward_gain")[0] > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("policy_lag", [0, 1])
def test_a_resumed_run_equals_an_uninterrupted_one(
    raft: Any, policy_lag: int, at_once: bool
) -> None:
    blobs = FakeBlobs()
    settings = {**SETTINGS, "policy_lag": policy_lag}
    uninterrupted = kitchen.run(raft(**settings), **adapters(blobs), name="uninterrupted")
    with pytest.raises(Interrupted):
        cancelled_at(
            6, raft(**settings), at_once=at_once, **adapters(blobs), name="stopped"
        ).result()
    resumed = kitchen.resume("stopped", recipe=raft, **adapters(blobs)).result()
    assert numbers(blobs, resumed) == numbers(blobs, uninterrupted)

"""The objective of docs/exercise.md, which no recipe of ours has: short, it learns, and it resumes
to the bit.
"""

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
    """The recipe's class."""
    (tmp_path / "raft.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("raft").Raft
    monkeypatch.delitem(sys.modules, "raft")


def adapters(blobs: FakeBlobs) -> dict[str, Any]:
    return {"training": FakeTraining(blobs), "datasets": DATA, "blobs": blobs}


def test_it_is_short() -> None:
    assert len(CODE.splitlines()) < 50
    stage = next(
        each
        for each in ast.parse(CODE).body
        if isinstance(each, ast.ClassDef) and each.name == "BestOfGroup"
    )
    assert (stage.end_lineno or 0) - stage.lineno < 25


def test_it_learns_what_is_rewarded(raft: Any) -> None:
    seen = RecordingObserver()
    kitchen.run(raft(**SETTINGS), **adapters(FakeBlobs()), observers=[seen])
    rewards = seen.series("reward")
    assert len(rewards) == 20
    assert sum(rewards[-5:]) / 5 > rewards[0] + 0.2, rewards
    assert seen.series("held/reward_gain")[0] > 0.2


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("policy_lag", [0, 1])
def test_stopped_and_gone_on_with_it_equals_one_left_alone(
    raft: Any, policy_lag: int, at_once: bool
) -> None:
    blobs, settings = FakeBlobs(), {**SETTINGS, "policy_lag": policy_lag}
    alone = kitchen.run(raft(**settings), **adapters(blobs), name="alone")
    with pytest.raises(Interrupted):
        cancelled_at(
            6, raft(**settings), at_once=at_once, **adapters(blobs), name="stopped"
        ).result()
    again = kitchen.resume("stopped", recipe=raft, **adapters(blobs)).result()
    assert numbers(blobs, again) == numbers(blobs, alone)

"""Rows of port calls: one per call, in the folder of the run that made it."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen.backend.port_call import PortCall
from kitchen.runs.requests import RequestLog
from kitchen.runs.store import read_journal
from tests.support.fake_runs import run_recipe
from tests.support.killing import KillAt, Killed


def rows_of(blobs: FakeBlobs) -> list[dict[str, Any]]:
    return list(read_journal(blobs, "run", "requests"))


def test_each_call_has_a_row_with_its_tokens() -> None:
    blobs = FakeBlobs()
    metrics = run_recipe("sl_basic", FakeTraining(blobs), blobs)
    rows = rows_of(blobs)
    steps = [row for row in rows if row["verb"] == "forward_backward"]
    assert [row["step"] for row in steps] == list(range(len(steps)))
    assert len(steps) == sum("loss" in row for row in metrics) > 3
    tokens = next(row["data/tokens"] for row in metrics if "data/tokens" in row)
    epochs = sum(row["input_tokens"] for row in steps) / tokens
    assert epochs == int(epochs) >= 1
    assert all(row["duration_ms"] >= 0 and row["attempt"] == 1 for row in rows)
    calls = Counter((row["port"], row["verb"]) for row in rows)
    assert calls["TrainingSession", "optim_step"] == len(steps)
    assert calls["TrainingClient", "open"] == 1
    assert calls["DatasetStore", "load"] >= 1


def test_runs_at_the_same_time_share_no_row() -> None:
    stores = [FakeBlobs() for _ in range(3)]
    models = ("tiny", "second", "third")
    barrier = threading.Barrier(len(stores))

    def cook(blobs: FakeBlobs, model: str) -> None:
        barrier.wait()
        run_recipe("sl_basic", FakeTraining(blobs), blobs, model=model)

    threads = [
        threading.Thread(target=cook, args=pair) for pair in zip(stores, models, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for blobs, model in zip(stores, models, strict=True):
        sessions = [row for row in rows_of(blobs) if row["port"] == "TrainingSession"]
        assert {row["model"] for row in sessions} == {model}
        assert len(sessions) == len(
            {(row["started"], row["verb"], row["step"]) for row in sessions}
        )


def test_resumed_run_appends_and_marks_repeated_calls() -> None:
    whole, blobs = FakeBlobs(), FakeBlobs()
    expected = run_recipe("sl_basic", FakeTraining(whole), whole)
    with pytest.raises(Killed):
        run_recipe("sl_basic", FakeTraining(blobs), blobs, observers=[KillAt(45)])
    first = rows_of(blobs)
    blobs.write("run/requests.jsonl", (blobs.read("run/requests.jsonl") or b"") + b'{"cut off')
    assert run_recipe("sl_basic", FakeTraining(blobs), blobs) == expected
    rows = rows_of(blobs)
    assert rows[: len(first)] == first
    again = [row for row in rows if row["attempt"] == 2]
    assert len(first) + len(again) == len(rows)
    made = {(row["step"], row["verb"]) for row in first}
    steps = [row for row in again if row["verb"] == "forward_backward"]
    assert {row.get("replayed", False) for row in steps} == {True, False}
    for row in steps:
        assert row.get("replayed", False) == ((row["step"], row["verb"]) in made)
    once = {row["step"] for row in rows if row["verb"] == "optim_step"}
    assert once == {row["step"] for row in rows_of(whole) if row["verb"] == "optim_step"}


def test_calls_after_those_of_a_killed_stage_are_not_replayed() -> None:
    blobs = FakeBlobs()
    place = {"stage": "Sample", "step": 3, "port": "Sampler", "verb": "sample"}
    caller = {"kitchen.stage": "Sample", "kitchen.step": 3}
    marked = []
    for attempt, calls in ((1, 2), (2, 3), (3, 5)):
        log = RequestLog(blobs, "run", attempt)
        for _ in range(calls):
            log.add(PortCall("Sampler", "sample", caller))
        log.run_ended(None)
        rows = [row for row in rows_of(blobs) if row["attempt"] == attempt]
        assert all(place.items() <= row.items() for row in rows)
        marked.append([row.get("replayed", False) for row in rows])
    assert marked == [[False] * 2, [True] * 2 + [False], [True] * 3 + [False] * 2]


class FullDisk(FakeBlobs):
    """A store in which no rows of port calls can be written."""

    def write(self, name: str, data: bytes) -> None:
        if name.endswith("requests.jsonl"):
            raise OSError(28, "No space left on device")
        super().write(name, data)


def test_rows_that_cannot_be_written_fail_the_run() -> None:
    blobs = FullDisk()
    with pytest.raises(OSError, match="No space left"):
        run_recipe("sl_basic", FakeTraining(blobs), blobs)

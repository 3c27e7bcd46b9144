"""Memoized results: stored by address, refused in another form."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen import Metrics, Result, ResumeError, Stage
from kitchen.engine.memo import MemoStore


@dataclass(frozen=True)
class Score(Result):
    value: float


class Measure(Stage):
    memoize = True

    def run(self) -> Score:
        return Score(1.0)


class MeasureTwice(Stage):
    memoize = True

    def run(self) -> tuple[Score, Metrics]:
        return Score(1.0), Metrics(score=1.0)


def test_results_are_stored_by_address() -> None:
    blobs = FakeBlobs()
    memo = MemoStore(blobs, "run")
    asyncio.run(memo.write(Measure(), "0.1", Score(1.0)))
    asyncio.run(memo.write(MeasureTwice(), "0.2", (Score(2.0), Metrics(score=2.0))))
    resumed = MemoStore(blobs, "run")
    assert resumed.read(Measure(), "0.1") == Score(1.0)
    assert resumed.read(MeasureTwice(), "0.2") == (Score(2.0), {"score": 2.0})
    assert resumed.read(Measure(), "0.3") is None
    assert MemoStore(blobs, "other").read(Measure(), "0.1") is None


@pytest.mark.parametrize(("run", "address"), [("run", "0.2"), ("other", "0.1")])
def test_a_result_from_elsewhere_is_refused(run: str, address: str) -> None:
    blobs = FakeBlobs()
    asyncio.run(MemoStore(blobs, "run").write(Measure(), "0.1", Score(1.0)))
    blobs.write(f"{run}/memo/{address}.json", blobs.read("run/memo/0.1.json") or b"")
    with pytest.raises(ResumeError, match=f"{run}/memo/{address}.json is no result of .*Measure"):
        MemoStore(blobs, run).read(Measure(), address)


def test_result_of_another_form_is_refused() -> None:
    memo = MemoStore(FakeBlobs(), "run")
    asyncio.run(memo.write(Measure(), "0.1", Score(1.0)))
    with pytest.raises(ResumeError, match="MeasureTwice"):
        memo.read(MeasureTwice(), "0.1")

"""Sides of a benchmark step in turn in their own processes, and their values are compared."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.bench.agreement import AgreementCheck
from tests.bench.benchmark import Benchmark, run_benchmark
from tests.bench.interleave import interleave, one_after_another, slow_rivals
from tests.bench.outcome import Outcome, Target, with_targets
from tests.bench.results import DROPPED, Options
from tests.bench.turns import Step, Turns
from tests.bench.worker import Worker


@dataclass(frozen=True)
class Sleeper:
    """A side that sleeps in each step, so that the step takes at least that long."""

    name: str
    seconds: float
    loss: float = 1.0
    log_path: str = ""  # a file to which each step appends the name

    def run(self, turns: Turns) -> None:
        turns.loaded()
        while True:
            turns.wait()
            time.sleep(self.seconds)
            turns.stop()
            if self.log_path:
                with open(self.log_path, "a") as file:
                    file.write(self.name)
            turns.report(tokens=100, loss=self.loss)


@dataclass(frozen=True)
class Allocator:
    """A side that allocates memory during a step and frees it."""

    megabytes: int
    name: str = "allocator"

    def run(self, turns: Turns) -> None:
        turns.loaded()
        turns.wait()
        allocated = b"\1" * (self.megabytes * 2**20)
        turns.stop()
        del allocated
        turns.report()


@dataclass(frozen=True)
class Broken:
    """A side that fails in its first step."""

    name: str = "broken"

    def run(self, turns: Turns) -> None:
        turns.loaded()
        turns.wait()
        print("output before the failure")
        raise ValueError("no such batch")


def test_sides_take_turns_and_a_slow_rival_is_eliminated(tmp_path: Path) -> None:
    log = tmp_path / "turns"
    sides = [
        Sleeper("a", 0.01, log_path=str(log)),
        Sleeper("b", 0.02, log_path=str(log)),
        Sleeper("c", 0.3, log_path=str(log)),
    ]
    measurements = interleave(sides, tmp_path, 4, ["b", "c"], elimination_rounds=2)
    assert log.read_text() == "abcabcabab"
    assert measurements.fastest == "b"
    assert [len(steps) for steps in measurements.steps.values()] == [4, 4, 2]
    assert min(step.seconds for step in measurements.steps["c"]) >= 0.3


def test_sides_that_do_not_fit_together_step_one_after_another(tmp_path: Path) -> None:
    log = tmp_path / "turns"
    sides = [Sleeper(name, seconds, log_path=str(log)) for name, seconds in (("a", 0), ("b", 0.05))]
    sides.append(Sleeper("c", 0.2, log_path=str(log)))
    measurements = one_after_another(sides, tmp_path, 3, ["b", "c"])
    assert log.read_text() == "aaabbbccc"
    assert measurements.fastest == "b"
    assert [len(steps) for steps in measurements.steps.values()] == [3, 3, 3]


def test_a_rival_within_the_allowed_lag_stays() -> None:
    steps = {
        name: [Step(9.0), Step(seconds)] for name, seconds in (("a", 1.0), ("b", 1.1), ("c", 1.3))
    }
    assert slow_rivals(steps, ["a", "b", "c"]) == ["c"]


def test_memory_is_the_peak_above_the_loaded_weights(tmp_path: Path) -> None:
    with Worker(Allocator(300), tmp_path) as worker:
        worker.ready()
        assert 290 < worker.step().values["peak_mb"] < 330


def test_an_error_of_a_side_is_raised_with_its_log(tmp_path: Path) -> None:
    with Worker(Broken(), tmp_path) as worker:
        worker.ready()
        with pytest.raises(RuntimeError, match="no such batch") as caught:
            worker.step()
    assert "output before the failure" in str(caught.value)


def test_a_side_killed_while_it_waits_is_reported(tmp_path: Path) -> None:
    with Worker(Sleeper("idle", 0.01), tmp_path) as worker:
        worker.ready()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="idle: its process ended with exit code -9"):
            worker.step()


@pytest.mark.parametrize(("loss", "sound"), [(1.0005, True), (1.002, False), (float("nan"), False)])
def test_a_benchmark_reports_speed_and_agreement(tmp_path: Path, loss: float, sound: bool) -> None:
    benchmark = Benchmark(
        "work",
        "A benchmark",
        Sleeper("ours", 0.02),
        (Sleeper("theirs", 0.1, loss),),
        (AgreementCheck("loss", 1e-3),),
        speed=Target(0.0, 1e9),
        others=(Sleeper("other", 0.02),),
    )
    result = run_benchmark(benchmark, Options(tmp_path), steps=5)
    assert result.sound is sound
    assert [row[0] for row in result.rows] == ["ours", "theirs", "other"]
    ours, theirs = (
        next(median(row["seconds"][DROPPED:]) for row in result.records if row.get("side") == side)
        for side in ("ours", "theirs")
    )
    assert (ours >= 0.02, theirs >= 0.1) == (True, True)  # each sleeps that long
    assert result.records[-1]["figures"]["speed against theirs"] == pytest.approx(theirs / ours)
    assert "reached: at least 0, aim 1e+09" in result.notes[0]
    assert [(name, verdict) for name, _, verdict in result.figures] == [
        ("speed against theirs", "reached: at least 0, aim 1e+09")
    ]
    assert ("NOT WITHIN" in "\n".join(result.notes)) is not sound


def test_rates_and_shares_exclude_the_first_steps() -> None:
    values = {"tokens": 100, "flops": 4e9, "flops_shared": 2e9, "peak_mb": 10.0}
    dropped = [Step(50.0, values)] * DROPPED
    steps = {
        "ours": [*dropped, Step(1.0, values), Step(1.0, values)],
        "theirs": [*dropped, Step(2.0, {"peak_mb": 40.0}), Step(4.0, {"peak_mb": 30.0})],
        "machine": [
            Step(0.1, {"gemm_gflops": rate, "peak_mb": 0.0}) for rate in (10.0, 16.0, 12.0, 12.0)
        ],
    }
    outcome = Outcome(steps, "ours", "machine")
    assert outcome.speed("theirs").value == pytest.approx(100 / 37.5)
    assert outcome.memory("theirs", Target(0.3, 0.2, at_most=True)).note.endswith(
        "0.25; reached: at most 0.3, aim 0.2"
    )
    share = outcome.share(Target(0.38, 0.6))
    assert share.value == 2 / 16
    assert "25%, or 12% with shared prefixes counted once; MISSED" in share.note


def test_parts_of_a_step_are_compared_by_seconds() -> None:
    steps = {
        name: [Step(9.0, {"generation": seconds})] * (DROPPED + 3)
        for name, seconds in (("ours", 2), ("theirs", 7))
    }
    reported = Outcome(steps, "ours").part("generation", "theirs")
    assert (reported.value, reported.name) == (3.5, "generation against theirs")
    assert reported.text.startswith("2.00 [2.00–2.00] s, 3.50")
    assert with_targets([reported, Outcome(steps, "ours").part("generation", "ours")]) == ()


def test_texts_differ_by_a_fraction_of_tokens() -> None:
    ours, theirs = (
        [Step(1.0, {"greedy": texts})] for texts in ([[1, 2, 3], [4, 5]], [[1, 2, 9], [4]])
    )
    assert AgreementCheck("greedy", 0.01).difference(ours, theirs) == 2 / 5


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [(1.01, 1.2, 0.0), (1.2, 1.15, 0.05), (float("nan"), 1.0, float("inf"))],
)
def test_only_errors_larger_than_theirs_count(
    ours: float, theirs: float, difference: float
) -> None:
    our_steps, their_steps, exact = (
        [Step(1.0, {"loss": loss})] * 2 for loss in (ours, theirs, 1.0)
    )
    assert AgreementCheck("loss", 0.03).difference(our_steps, their_steps, exact) == pytest.approx(
        difference
    )

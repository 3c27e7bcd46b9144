"""Runs read from their folders by another process, while they are cooked and afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen import Observer, StageDone
from kitchen.config.order import Order
from kitchen.engine.observers import SavePointDue
from kitchen.runs.follow import SPEED, RunFollower, RunView
from kitchen.runs.history import series_of
from kitchen.runs.lock import lease
from kitchen.runs.store import read_journal, write_run
from tests.support.fake_runs import run_recipe


class Follower(Observer):
    """Reads the run's folder when a save point is due and after each stage of the end."""

    def __init__(self, blobs: FakeBlobs) -> None:
        self._blobs = blobs
        self._follower: RunFollower | None = None
        self.views: list[RunView] = []

    def stage_done(self, event: StageDone) -> None:
        if not event.location.loops:
            self._read()

    def save_point_due(self, event: SavePointDue) -> None:
        self._read()

    def _read(self) -> None:
        self._follower = self._follower or RunFollower(self._blobs, "run")
        self.views.append(self._follower.read())


def record(status: str, **changes: Any) -> dict[str, Any]:
    order = Order("recipes.soup:Soup", {})
    return {
        "run": "run",
        "recipe": order.recipe,
        "order": {**vars(order), "sources": {}, "objects": []},
        "attempts": [{"started": "2026-11-28T10:00:00+00:00", "seconds": 5.0}],
        "facts": {},
        "status": status,
        "rendering": {},
        "metrics": {},
        **changes,
    }


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def steps(count: int, start: int = 0, stage: str = "ReportStep") -> list[dict[str, Any]]:
    return [
        {"n": at, "stage": stage, "step": at, "loss": 1.0, "seconds": 2.0 * at}
        for at in range(start, start + count)
    ]


def test_a_view_follows_a_run_to_its_end() -> None:
    blobs = FakeBlobs()
    follower = Follower(blobs)
    run_recipe("sl_basic", FakeTraining(blobs), blobs, observers=[follower])
    at_save_points = [view for view in follower.views if view.step]
    total = at_save_points[-1].step
    assert total > 2
    assert {view.steps for view in at_save_points} == {total}
    numbers = [view.step for view in at_save_points]
    assert numbers == sorted(numbers)
    assert all(view.summary.status == "running" and not view.is_over for view in follower.views)
    after = RunFollower(blobs, "run").read()
    assert (after.is_over, after.exit_code, after.step) == (True, 0, total)
    assert len(after.series["loss"]) == total
    assert after.series["loss"] == tuple(series_of(read_journal(blobs, "run", "metrics"), "loss"))


@pytest.mark.parametrize(
    ("status", "recorded", "code"),
    [
        ("completed", {"exit_code": 0}, 0),
        ("failed", {"exit_code": 3}, 3),
        ("interrupted", {"exit_code": 130}, 130),
        ("running", {}, 1),  # no process holds it, so it was killed
    ],
)
def test_the_exit_code_is_that_of_the_run(status: str, recorded: dict[str, Any], code: int) -> None:
    blobs = FakeBlobs()
    write_run(blobs, "run", record(status, **recorded))
    view = RunFollower(blobs, "run").read()
    assert view.is_over
    assert view.exit_code == code
    assert view.seconds == 5.0


def test_the_time_left_is_that_of_recent_steps() -> None:
    blobs = FakeBlobs()
    loops = {"Epochs": 1, "Batches": 20}
    write_run(blobs, "run", record("running", loops=loops))
    first_attempt = [{**row, "seconds": 1000.0 + row["step"]} for row in steps(4)]
    blobs.write("run/metrics.jsonl", lines([*first_attempt, *steps(6, start=4)]))
    with lease(blobs, "run"):
        view = RunFollower(blobs, "run").read()
    assert (view.step, view.steps, view.left) == (10, 20, 20.0)


def test_the_step_is_that_of_the_innermost_loop() -> None:
    blobs = FakeBlobs()
    write_run(blobs, "run", record("running", loops={"Epochs": 4, "Batches": 40}))
    epochs = {"n": 99, "stage": "ReportEpoch", "step": 1, "seconds": 50.0}
    blobs.write("run/metrics.jsonl", lines([*steps(20), epochs]))
    assert RunFollower(blobs, "run").read().step == 20


def test_the_speed_is_that_of_the_last_loop() -> None:
    blobs = FakeBlobs()
    write_run(blobs, "run", record("running"))
    rows = [{**row, "tokens": 10} for row in [*steps(4), *steps(3, stage="Other")]]
    rows = [{**row, "seconds": 2.0 * at} for at, row in enumerate(rows)]
    blobs.write("run/metrics.jsonl", lines(rows))
    assert RunFollower(blobs, "run").read().series[SPEED] == ((2, 5.0), (3, 5.0))


def test_rows_that_a_resumed_run_drops_are_dropped() -> None:
    blobs = FakeBlobs()
    write_run(blobs, "run", record("running"))
    follower = RunFollower(blobs, "run")
    blobs.write("run/metrics.jsonl", lines(steps(5)) + b'{"n": 5, "sta')
    assert [step for step, _ in follower.read().series["loss"]] == [1, 2, 3, 4, 5]
    blobs.write("run/metrics.jsonl", lines([*steps(2), *steps(1, start=2, stage="Other")]))
    assert [step for step, _ in follower.read().series["loss"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("at", "activity"),
    [
        ({"stage": "EvaluateBase", "loop": "", "step": 0}, "Evaluating the base model"),
        ({"stage": "ReportStep", "loop": "Batches", "step": 3}, ""),
    ],
)
def test_a_stage_outside_loops_is_named(at: dict[str, Any], activity: str) -> None:
    blobs = FakeBlobs()
    write_run(blobs, "run", record("running", at=at))
    with lease(blobs, "run"):
        assert RunFollower(blobs, "run").read().activity == activity

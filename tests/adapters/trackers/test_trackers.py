"""The trackers' own libraries, offline: each point arrives once, also after a kill."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kitchen.runs.tracker import Position, TrackedRun, Tracker
from tests.support.commands import in_folder
from tests.support.tracked_points import stored_points, stored_summary, tracker_settings

KEYS = {"a": "0a" * 16, "b": "0b" * 16}
STATUS = {
    "tensorboard": "completed",
    "trackio": "run completed",
    "wandb": "0",
    "mlflow": "FINISHED",
}
TRACKERS = [
    "tensorboard",
    "trackio",
    "wandb",
    pytest.param("mlflow", marks=pytest.mark.slow),  # creates a database, for 6 s
]


def run_named(name: str) -> TrackedRun:
    settings = {"learning_rate": 1e-4, "reading": {"limit": None}}
    return TrackedRun(name, KEYS[name], "recipes.sl_basic:SlBasic", settings, {}, "memory://runs")


def build(name: str, folder: Path) -> Tracker:
    module = importlib.import_module(f"adapters.trackers.{name}")
    tracker: Tracker = getattr(module, f"{name.capitalize()}Tracker")(
        **tracker_settings(folder)[name]
    )
    return tracker


def opened(tracker: str, folder: Path, run: str, state: dict[str, Any]) -> Tracker:
    built = build(tracker, folder)
    built.prepare(state)
    built.open(run_named(run), state)
    return built


def send(tracker: Tracker, steps: range) -> None:
    """Send two values for each step: a loss and, at the same step, a table or another metric."""
    for step in steps:
        tracker.metrics(Position(2 * step, step, "Train"), {"loss": 1.0 / (step + 1)})
        at = Position(2 * step + 1, step, "Evaluate")
        if step % 25 == 5:
            tracker.table(at, "Scores, 95 %", ("set", "score"), [("a|b", "c\nd"), ("x", 0.5)])
        else:
            tracker.metrics(at, {"held out/f1": math.nan})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with in_folder(tmp_path):  # MLflow stores artifacts there
        yield tmp_path


@pytest.mark.parametrize("name", TRACKERS)
def test_points_that_arrive_twice_are_stored_once(name: str, folder: Path) -> None:
    killed = opened(name, folder, "a", {})
    send(killed, range(30))
    confirmed = killed.flush()
    state = dict(killed.state())
    send(killed, range(30, 36))  # stored, but not confirmed
    killed.flush()
    if name == "wandb":  # whose own process writes the file
        killed.close("interrupted")
    resumed = opened(name, folder, "a", state)
    send(resumed, range(30 if confirmed else 0, 50))
    resumed.flush()
    resumed.close("completed")
    points = stored_points(name, folder, "a", KEYS["a"], "loss")
    assert [step for step, _ in points] == list(range(50))
    assert [value for _, value in points] == pytest.approx([1 / (n + 1) for n in range(50)])
    others = stored_points(name, folder, "a", KEYS["a"], "held out/f1")
    assert len(others) == 48


@pytest.mark.parametrize("name", TRACKERS)
def test_two_runs_of_a_process_share_no_row(name: str, folder: Path) -> None:
    trackers = {run: opened(name, folder, run, {}) for run in "ab"}
    for step in range(4):
        send(trackers["a"], range(step, step + 1))
        send(trackers["b"], range(10 + step, 11 + step))
    for tracker in trackers.values():
        tracker.flush()
        tracker.close("completed")
    for run, first in (("a", 0), ("b", 10)):
        points = stored_points(name, folder, run, KEYS[run], "loss")
        assert [step for step, _ in points] == list(range(first, first + 4))
        learning_rate, status = stored_summary(name, folder, run, KEYS[run])
        assert float(learning_rate) == 1e-4
        assert status == STATUS[name]

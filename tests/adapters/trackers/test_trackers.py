"""The trackers' own libraries, offline: each point arrives once, also after a kill."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from adapters.trackers.tensorboard import TensorboardTracker, stored_values
from adapters.trackers.wandb import WandbTracker
from kitchen.errors import BackendError
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


def run_named(name: str, folder: str = "memory://runs") -> TrackedRun:
    settings = {"learning_rate": 1e-4, "reading": {"limit": None}}
    return TrackedRun(name, KEYS[name], "recipes.sl_basic:SlBasic", settings, {}, folder)


def stored_losses(folder: str) -> list[float]:
    """Return the losses in TensorBoard's files below a folder."""
    values = chain.from_iterable(event.summary.value for event in stored_values(folder))
    return [value.simple_value for value in values if value.tag == "loss"]


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


def end(tracker: Tracker) -> None:
    """End an attempt as a kill does, but let W&B's own process write its file."""
    if isinstance(tracker, WandbTracker):
        tracker.close("interrupted")


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
    end(killed)
    first = 30 if confirmed else 0
    for last in (first, 32):  # killed before the next value, and in the middle of repeated ones
        again = opened(name, folder, "a", state)
        send(again, range(first, last))
        if again.flush():
            first, state = last, dict(again.state())
        end(again)
    resumed = opened(name, folder, "a", state)
    send(resumed, range(first, 50))
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


@pytest.mark.parametrize("name", TRACKERS)
def test_odd_names_and_texts_are_stored(name: str, folder: Path) -> None:
    tracker = opened(name, folder, "a", {})
    names = ("a/b c:%", "a//b", "../up", "..", "/a", "a/", "n" * 300, "step", "名")
    tracker.metrics(Position(0, 0, "Train"), {"loss": 1.0, **dict.fromkeys(names, math.inf)})
    title = "Scores: / # " + "t" * 300
    tracker.table(Position(1, 0, "Train"), title, ("a",), [("\ud800\x00",), ("x" * 10**6,)])
    tracker.flush()
    tracker.close("completed")
    assert stored_points(name, folder, "a", KEYS["a"], "loss") == [(0, 1.0)]


def test_a_new_run_with_the_name_of_another_is_stored(folder: Path) -> None:
    for key, losses in (("a", [1.0]), ("b", [2.0, 3.0])):
        tracker = TensorboardTracker(logdir="tb")
        tracker.prepare({})
        tracker.open(replace(run_named("a"), key=KEYS[key]), {})
        for number, loss in enumerate(losses):
            tracker.metrics(Position(number, number, "Train"), {"loss": loss})
        tracker.close("completed")
    assert stored_losses("tb/a") == [1.0]
    assert stored_losses(f"tb/a-{KEYS['b'][:8]}") == [2.0, 3.0]


def test_events_of_a_moved_run_stay_together(folder: Path) -> None:
    state: dict[str, Any] = {}
    for number, place in enumerate(("runs", "moved")):
        tracker = TensorboardTracker()
        tracker.prepare(state)
        tracker.open(run_named("a", str(folder / place)), state)
        tracker.metrics(Position(number, number, "Train"), {"loss": float(number)})
        tracker.flush()
        state = dict(tracker.state())
        tracker.close("completed")
        (folder / "runs").rename(folder / "moved") if place == "runs" else None
    assert sorted(stored_losses("moved/tensorboard")) == [0.0, 1.0]
    assert not Path("runs").exists()


def test_wandb_that_stores_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with pytest.raises(BackendError, match="set WANDB_MODE to online or offline"):
        WandbTracker().prepare({})


@pytest.mark.slow
def test_runs_that_start_at_once_share_a_new_mlflow_file(folder: Path) -> None:
    code = (
        "import sys, mlflow; from adapters.trackers.mlflow import MlflowTracker; "
        "print(flush=True); sys.stdin.readline(); "
        "MlflowTracker(uri='sqlite:///new/mlflow.db').prepare({})"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", code]
    (folder / "new").mkdir()
    (folder / "new" / ".mlflow.db.part").write_text("of a process that was killed")
    processes: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(3)]
    for process in processes:  # until each has imported MLflow
        process.stdout.readline()
    for process in processes:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]


@pytest.mark.slow
def test_values_of_a_lost_mlflow_file_are_not_skipped(folder: Path) -> None:
    tracker = opened("mlflow", folder, "a", {})
    send(tracker, range(2))
    tracker.flush()
    state = dict(tracker.state())
    with pytest.raises(BackendError, match=r"the run with the tag kitchen.key=.* is gone"):
        opened("mlflow", folder, "b", state)
    (folder / "mlflow.db").unlink()
    with pytest.raises(BackendError, match=r"mlflow.db is gone.*delete trackers/mlflow.json"):
        build("mlflow", folder).prepare(state)
    assert not (folder / "mlflow.db").exists()

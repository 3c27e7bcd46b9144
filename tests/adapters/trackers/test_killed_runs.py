"""Runs that trackers observe offline: killed with SIGKILL and resumed, and two in one process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.local.blobs import LocalBlobs
from kitchen.runs.store import read_journal, read_run
from kitchen.runs.tracking import read_memory
from tests.support.installed_trackers import ROOT, write_entry_points
from tests.support.tracked_points import stored_points
from tests.support.tracked_victim import STEPS

pytestmark = pytest.mark.slow
SECRET = "a1b2c3d4" * 5
TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")
Program = Callable[..., int]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Runs Python in an empty folder, with the trackers installed."""
    installed = write_entry_points(tmp_path / "installed")

    def run(*arguments: str) -> int:
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{installed}"}
        # W&B by itself would wait 90 s for a server that does not answer
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, timeout=80)
        return done.returncode

    return run


def recorded(blobs: LocalBlobs, run: str) -> list[tuple[int, float]]:
    rows = read_journal(blobs, run, "metrics")
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


def check_points(tracker: str, folder: Path, run: str) -> None:
    """Check that the tracker has each loss of a run exactly once."""
    blobs = LocalBlobs(str(folder / "runs"))
    memory = read_memory(blobs, run, tracker)
    points = stored_points(tracker, folder, run, memory["key"], "loss")
    assert [step for step, _ in points] == list(range(STEPS))
    values = [value for _, value in recorded(blobs, run)]
    assert [value for _, value in points] == pytest.approx(values, rel=1e-6)  # float32
    assert memory["status"] == "completed"
    assert read_run(blobs, run)["trackers"][tracker]["state"] == "sent"


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_killed_and_resumed_run_has_each_point_once(
    tracker: str, program: Program, tmp_path: Path
) -> None:
    assert program("-m", "tests.support.tracked_victim", tracker, "kill") == -signal.SIGKILL
    assert program("-m", "kitchen.cli", "resume", "r") == 0
    check_points(tracker, tmp_path, "r")


@pytest.mark.parametrize("tracker", TRACKERS)
def test_runs_of_one_process_share_no_point(tracker: str, program: Program, tmp_path: Path) -> None:
    assert program("-m", "tests.support.tracked_victim", tracker, "both") == 0
    for run in ("a", "b"):
        check_points(tracker, tmp_path, run)


def test_a_server_that_never_answers_does_not_hold_the_process(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never reads
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        options = ("--training", "fake", "max_steps=4", "evaluation.max_tokens=4", "--name", "r")
        run = ("-m", "kitchen.cli", "run", "recipes.sl_basic", *options, "--observe", "wandb")
        assert program(*run) == 0
    record = read_run(LocalBlobs(str(tmp_path / "runs")), "r")
    assert record["status"] == "completed"
    assert record["trackers"]["wandb"]["state"] == "failed"
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]

"""`kitchen sweep`: real processes that train on the fake, killed and resumed."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kitchen.cli.commands.sweep import _Report
from kitchen.config.order import Order
from kitchen.experiments.ledger import Point, PointStatus, Sweep
from tests.support.commands import invoke, output
from tests.support.soup import SMALL

AXES = ("--over", "learning_rate=1e-3,1e-2", "--over", "seed=0..1")


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics of a run, without their durations."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for row in rows:
        row.pop("seconds")
    return rows


@pytest.mark.parametrize("stopping", [True, False])
def test_a_stopped_point_is_not_reported_as_dead(stopping: bool) -> None:
    out = Console(file=io.StringIO(), width=80)
    sweep = Sweep("lr", "recipes.soup", {}, [], "local", 1, 1, "/")
    report = _Report(out, sweep, 2)
    if stopping:
        report.stopping()
    point = Point(1, "digest", "lr-1", {"seed": 0}, Order("recipes.soup:Soup", {}))
    report.changed(PointStatus(point, "stopped"))
    assert isinstance(out.file, io.StringIO)
    ending = "stopped" if stopping else "its process ended before the run was complete"
    assert out.file.getvalue().endswith(f"point 1/2, lr-1 (seed=0): {ending}\n")


def test_a_sweep_runs_every_combination(here: Path) -> None:
    shown = output(0, "sweep", *SMALL, *AXES, "--jobs", "2", "--name", "lr")
    assert "4 of 4 points completed" in shown
    found = json.loads(invoke("sweep", "show", "lr", "--json").stdout)
    values = [point["values"] for point in found["points"]]
    assert values[1] == {"learning_rate": 0.001, "seed": 1}
    assert {point["status"] for point in found["points"]} == {"completed"}
    assert len({point["metrics"]["loss"] for point in found["points"]}) == 4
    alone = ("run", *SMALL, "learning_rate=1e-2", "seed=0", "--name", "alone")
    output(0, *alone)
    assert metrics(here / "runs/lr-3") == metrics(here / "runs/alone")
    assert "lr-3" in output(0, "sweep", "show", "lr")
    before = (here / "runs/lr-1/run.json").read_bytes()
    assert "4 of 4 points completed" in output(0, "sweep", "resume", "lr")
    assert (here / "runs/lr-1/run.json").read_bytes() == before
    assert "is not running" in output(0, "sweep", "stop", "lr")
    assert "`kitchen sweep show lr`" in output(2, "resume", "lr")
    assert "kitchen sweep resume lr" in output(2, "sweep", *SMALL, *AXES, "--name", "lr")


def test_every_point_is_checked_before_the_first_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = output(2, "sweep", *SMALL, "--over", "epochs=1,0,-1", "--over", "sed=1,2")
    assert "epochs=0" in shown
    assert "epochs=-1" in shown
    assert "did you mean 'seed'" in shown
    assert "seed is both a setting and an axis" in output(2, "sweep", *SMALL, "seed=1", *AXES)
    assert "points 1 and 2 have the same settings" in output(
        2, "sweep", *SMALL, "--over", 'seed="1",1'
    )
    assert "needs an axis" in output(2, "sweep", *SMALL)
    assert "memory" in output(2, "sweep", *SMALL, *AXES, "--blobs", "fake")
    assert "did you mean 'show'" in output(2, "sweep", "shw", "lr")
    assert "reading.limit is both" in output(
        2, "sweep", *SMALL, "reading={limit: 9}", "--over", "reading.limit=5,6"
    )
    adapter = ("--over", "training.device=cpu,cuda")
    assert "give them with --set" in output(2, "sweep", *SMALL, *adapter)
    assert "cannot be the name" in output(2, "sweep", *SMALL, *AXES, "--name", "a/b", "--dry-run")
    with monkeypatch.context() as changed:
        changed.setenv("SOME_TOKEN", "hf_12345678")
        text = output(2, "sweep", *SMALL, *AXES, "model=hf_12345678")
        assert "has a secret in model" in text
        secret = ("--executor", "command: env TOKEN=hf_12345678 {command}")
        text += output(2, "sweep", *SMALL, *AXES, *secret)
        assert "has a secret, and the ledger" in text
        assert "hf_12345678" not in text
    assert "nothing was run" in output(0, "sweep", *SMALL, *AXES, "--dry-run")
    assert not (here / "runs").exists()


@pytest.mark.usefixtures("soup")
def test_a_failed_point_is_reported_and_kept(here: Path) -> None:
    sweep = ("sweep", "recipes.soup", "--training", "fake", "--over", "wrong=no,bug", "--name", "s")
    shown = output(1, *sweep)
    assert "s-2 failed" in shown
    assert "ZeroDivisionError: half a pot" in shown
    assert "kitchen sweep resume s --retry-failed" in shown
    [done, failed] = json.loads(invoke("sweep", "show", "s", "--json").stdout)["points"]
    assert (done["status"], failed["status"]) == ("completed", "failed")
    assert "failed again" in output(1, "sweep", "resume", "s")
    assert "half a pot" in output(1, "sweep", "resume", "s", "--retry-failed")
    record = json.loads((here / "runs/s-2/run.json").read_text())
    assert len(record["attempts"]) == 1  # nothing was saved: it started anew


def command(*arguments: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "kitchen.cli", "sweep", *arguments]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def holders(runs: Path) -> Iterator[tuple[str, int]]:
    """Yield the runs that are held now, each with its process."""
    for claim in runs.glob("k-*/lease/*.json"):
        try:
            yield claim.parts[-3], json.loads(claim.read_text())["pid"]
        except (OSError, ValueError):  # deleted, or not written whole, at this moment
            continue


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


@dataclass
class Kills:
    """Kills of the driver of a sweep, and of its points, at random moments."""

    here: Path
    of_parents: bool  # whether the parent of a point's process is killed in every second case
    draws: random.Random = field(default_factory=lambda: random.Random(0))
    driver: int = 0
    points: Counter[str] = field(default_factory=Counter)  # by run
    newest: dict[str, str] = field(default_factory=dict)  # save point at the last kill, by run
    saved: Counter[str] = field(default_factory=Counter)  # those after a save point, by run

    def run(self, sweep: Sequence[str], most: int) -> None:
        """Run a sweep to its end, and kill up to `most` times."""
        driver = command(*sweep)
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline:
            time.sleep(self.draws.uniform(0.2, 1.2))
            if driver.poll() is not None:
                break
            held = list(holders(self.here / "runs"))
            if not held or self.driver + self.points.total() >= most:
                continue
            if self.draws.random() < 0.3 and self.driver < most // 3:
                driver.kill()
                driver.wait()
                self.driver += 1
                driver = command("resume", "k")
            else:
                self.kill(*self.draws.choice(held))
        assert driver.wait() == 0

    def kill(self, run: str, pid: int) -> None:
        """Kill a point, if it has saved since it was last killed: the driver gives others up."""
        folder = self.here / "runs" / run / "save"
        newest = max((file.name for file in folder.glob("0*.json")), default="")
        if self.newest.get(run) == newest:
            return
        try:
            killed_parent = self.of_parents and self.points.total() % 2
            os.kill(parent_of(pid) if killed_parent else pid, signal.SIGKILL)
        except (OSError, ProcessLookupError):
            return
        self.newest[run] = newest
        self.points[run] += 1
        self.saved[run] += newest != ""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_killed_sweep_equals_an_undisturbed_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    rates, most = 8, 20
    if executor == "ray":
        reason = "Ray is not installed: pip install 'crucible-kitchen[ray]'"
        pytest.importorskip("ray", reason=reason)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    small = ("recipes.sl_basic", "--training", "fake", "reading.limit=120", "epochs=3")
    listed = ",".join(f"{number}e-3" for number in range(1, rates + 1))
    axes = ("--over", f"learning_rate={listed}", "--over", "seed=0..2")
    sweep = (*small, "evaluation.metric=loss", "save_every=3", *axes, "--name", "k")
    kills = Kills(here, of_parents=executor == "ray")
    kills.run([*sweep, "--jobs", "2", "--executor", executor], most)
    assert kills.driver >= 2
    assert kills.points.total() >= most // 2
    points = json.loads(invoke("sweep", "show", "k", "--json").stdout)["points"]
    assert [point["status"] for point in points] == ["completed"] * rates * 3
    output(0, "sweep", *sweep, "--jobs", "2", "--runs", "calm")
    for point in points:
        name = point["run"]
        assert metrics(here / "runs" / name) == metrics(here / "calm" / name), name
        record = json.loads((here / "runs" / name / "run.json").read_text())
        # a run that was not resumed has one attempt
        assert len(record["attempts"]) > kills.saved[name], name


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_search_has_all_of_its_points(here: Path, jobs: int) -> None:
    reason = "Optuna is not installed: pip install 'crucible-kitchen[optuna]'"
    pytest.importorskip("optuna", reason=reason)
    small = ("recipes.sl_basic", "--training", "fake", "reading.limit=120", "epochs=2")
    axes = ("--over", "learning_rate=1e-4..1e-1:log", "--over", "lora_rank=4,8")
    search = ("--optuna", "8", "--minimise", "loss", "--jobs", str(jobs), "--name", "k")
    sweep = [*small, "evaluation.metric=loss", "save_every=3", *axes, *search]
    kills = Kills(here, of_parents=False)
    kills.run(sweep, 9)
    assert kills.driver >= 1
    assert kills.points.total() >= 4
    found = json.loads(invoke("sweep", "show", "k", "--json").stdout)
    assert [point["status"] for point in found["points"]] == ["completed"] * 8
    for point in found["points"]:
        record = json.loads((here / "runs" / point["run"] / "run.json").read_text())
        assert len(record["attempts"]) > kills.saved[point["run"]]
    if jobs == 1:  # with more, proposals depend on which point ends first
        output(0, "sweep", *sweep, "--runs", "calm")
        for point in found["points"]:
            name = point["run"]
            assert metrics(here / "runs" / name) == metrics(here / "calm" / name), name

"""Runs with trackers, through Python and the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import kitchen
from adapters.local.blobs import LocalBlobs
from adapters.trackers.tensorboard import stored_values
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.request import RunRequest
from kitchen.errors import BackendError, KitchenError
from kitchen.experiments.axes import parse_axes
from kitchen.experiments.ledger import Point
from kitchen.experiments.sweep import SweepRequest, plan_sweep
from kitchen.runs.store import read_journal, read_run
from tests.support.commands import invoke
from tests.support.installed_trackers import write_entry_points
from tests.support.recording import numbers

SETTINGS = {"max_steps": 4, "evaluation.max_tokens": 4, "reading.held_out_rows": 4}
FAILING = ("Raising", "Hanging", "Sleeping", "Unusable")


@pytest.fixture(autouse=True)
def installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(write_entry_points(here / "ours"))
    failing = {name.lower(): f"tests.support.failing_trackers:{name}" for name in FAILING}
    monkeypatch.syspath_prepend(write_entry_points(here / "failing", failing))


def run_observed(name: str, *trackers: str) -> kitchen.Outcome:
    return kitchen.run(
        "recipes.sl_basic", settings=SETTINGS, training="fake", name=name, observe=trackers
    )


@pytest.fixture
def store() -> LocalBlobs:
    return LocalBlobs("runs")


def test_trackers_that_fail_change_no_bit(store: LocalBlobs) -> None:
    plain = run_observed("plain")
    observed = run_observed("observed", "raising", "hanging", "sleeping", "tensorboard")
    assert numbers(store, observed) == numbers(store, plain)
    record = read_run(store, "observed")
    assert record["status"] == "completed"
    states = {name: entry["state"] for name, entry in record["trackers"].items()}
    failed = dict.fromkeys(("raising", "hanging", "sleeping"), "failed")
    assert states == {**failed, "tensorboard": "sent"}
    log = read_journal(store, "observed", "log")
    assert sorted(entry["tracker"] for entry in log if "tracker" in entry) == sorted(failed)


def test_a_tracker_that_cannot_be_used_refuses_the_run(store: LocalBlobs) -> None:
    with pytest.raises(BackendError, match=r"'unusable' cannot be used: .*libtracker"):
        run_observed("refused", "unusable")
    assert store.read("refused/run.json") is None


def test_a_completed_run_is_sent_to_further_trackers(store: LocalBlobs) -> None:
    run_observed("late")
    assert invoke("resume", "late", "--observe", "tensorboard:logdir=tb").exit_code == 0
    events = list(stored_values("tb/late"))
    values = [*read_journal(store, "late", "metrics"), *read_journal(store, "late", "tables")]
    samples = {row["n"] for row in read_journal(store, "late", "samples")}
    assert len(events) == len(values) + len(samples)
    assert invoke("resume", "late").exit_code == 0
    assert len(list(stored_values("tb/late"))) == len(events)
    assert "tensorboard" in invoke("runs", "show", "late").output


def test_a_run_file_names_trackers(here: Path, store: LocalBlobs) -> None:
    (here / "my.yaml").write_text("recipe: recipes.sl_basic\nobserve: ['tensorboard:logdir=a']\n")
    options = ("--training", "fake", "--name", "filed", *(f"{k}={v}" for k, v in SETTINGS.items()))
    assert invoke("run", "my.yaml", *options, "--observe", "tensorboard:logdir=b").exit_code == 0
    assert list(stored_values("b/filed"))
    assert not Path("a").exists()
    assert read_run(store, "filed")["order"]["observers"] == {"tensorboard": {"logdir": "b"}}


def test_points_of_a_sweep_are_tracked() -> None:
    def points(*observe: str) -> Sequence[Point]:
        adapters = AdapterChoice({"training": "fake"})
        request = RunRequest("recipes.sl_basic", (), (), adapters, observe=observe)
        return plan_sweep(SweepRequest(request, parse_axes(["seed=0..1"])), "s").points

    tracked = points("tensorboard:logdir=tb")
    assert [point.order.observers for point in tracked] == [{"tensorboard": {"logdir": "tb"}}] * 2
    assert [point.digest for point in tracked] == [point.digest for point in points()]


def test_every_mistake_with_trackers_is_reported_with_others() -> None:
    with pytest.raises(KitchenError) as caught:
        kitchen.submit("recipes.sl_basic", settings={"max_step": 1}, observe=["wanb"])
    assert "max_steps" in str(caught.value)
    assert "did you mean 'wandb'" in str(caught.value)


def test_the_list_shows_trackers_and_their_settings() -> None:
    trackers: list[dict[str, Any]] = json.loads(invoke("list", "--json").output)["trackers"]
    [wandb] = [tracker for tracker in trackers if tracker["name"] == "wandb"]
    assert wandb["settings"][:2] == ["project", "entity"]
    assert wandb["needs"] == "crucible-kitchen[wandb]"

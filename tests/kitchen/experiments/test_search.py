"""Searches with Optuna, whose points are functions of a test in place of processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("optuna", reason="install crucible-kitchen[optuna] for searches")

from adapters.fake.blobs import FakeBlobs
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.request import RunRequest
from kitchen.errors import ConfigError
from kitchen.experiments.axes import parse_axes
from kitchen.experiments.driver import Driver
from kitchen.experiments.ledger import Ledger, Point, PointStatus, Search, Sweep
from kitchen.experiments.search import (
    Objective,
    Proposer,
    best,
    change_objective,
    check_search,
    find_objective,
    find_search,
    first_points,
)
from kitchen.experiments.sweep import SweepRequest, plan_sweep
from kitchen.experiments.worker import WorkerOptions
from tests.support.sweeps import Scripted, record

STORE = AdapterChoice({"blobs": None})
AXES = ("learning_rate=1e-5..1e-1:log", "lora_rank=4,8,16", "batch_size=2..16:uniform")
Behaviour = Callable[[Ledger, Point], int | None]


def new_ledger(count: int, *axes: str, metric: str = "dev/score") -> Ledger:
    """Return the ledger of a new search, in memory."""
    run = RunRequest("recipes.sl_basic", (), (), AdapterChoice({"training": "fake"}))
    parsed = parse_axes(axes)
    search = find_search(count, Objective(metric, "maximise"), 0, parsed)
    planned = plan_sweep(SweepRequest(run, parsed, search=search), "s")
    ledger = Ledger(FakeBlobs(), "s")
    ledger.create(planned.sweep, planned.points)
    return ledger


def score(point: Point) -> float:
    """Return a score with its maximum at a learning rate of 1e-3 and rank 8."""
    distance = abs(math.log10(point.values["learning_rate"]) + 3)
    return -distance - abs(point.values["lora_rank"] - 8) / 8


def complete(of: Ledger, point: Point) -> int:
    record(of, point, "completed", metrics={"dev/score": score(point)})
    return 0


def drive(of: Ledger, behave: Behaviour, *, jobs: int = 1, most: int = 1000) -> Scripted:
    """Run a search, and stop it after `most` starts."""
    executor = Scripted(of, lambda point: behave(of, point))
    sweep = of.sweep()
    assert sweep.search

    def stop_after(status: PointStatus) -> None:
        if len(executor.started) >= most:
            driver.stop()

    driver = Driver(of, executor, jobs, 2, STORE, WorkerOptions(), stop_after)
    driver.proposer = Proposer(of, sweep.search, trust=False)
    driver.run()
    return executor


def values(of: Ledger) -> list[dict[str, object]]:
    return [dict(point.values) for point in of.points()]


def test_an_interrupted_search_proposes_the_same_points() -> None:
    whole = new_ledger(14, *AXES)
    assert drive(whole, complete).started == list(range(1, 15))
    resumed = new_ledger(14, *AXES)
    for most in (1, 5, 2, 1000):
        drive(resumed, complete, most=most)
    assert values(resumed) == values(whole)
    assert drive(resumed, complete).started == []


def test_points_are_distinct_and_as_many_as_asked_for() -> None:
    of = new_ledger(12, *AXES)
    behaviours = iter([-9, 1, 0, math.nan] * 6)

    def various(of: Ledger, point: Point) -> int:
        code = next(behaviours)
        if code == -9:
            return -9
        status = "failed" if code == 1 else "completed"
        value = score(point) if code == 0 else math.nan
        record(of, point, status, metrics={"dev/score": value})
        return int(code == 1)

    drive(of, various, jobs=2)
    statuses = of.statuses()
    assert [status.point.run for status in statuses] == [f"s-{n:02}" for n in range(1, 13)]
    assert {status.state for status in statuses} == {"completed", "failed"}
    assert len(set(of.digests())) == 12
    search = of.sweep().search
    assert search
    found = best(search, statuses)
    measured = [status.metrics.get("dev/score", math.nan) for status in statuses]
    usable = [value for value in measured if math.isfinite(value)]
    assert found
    assert found[1] == max(usable)
    worst = best(replace(search, direction="minimise"), statuses)
    assert worst
    assert worst[1] == min(usable)


def test_all_combinations_of_lists_are_found() -> None:
    of = new_ledger(6, "learning_rate=1e-3,1e-4", "lora_rank=4,8,16")
    drive(of, complete)
    assert len({tuple(point.items()) for point in values(of)}) == 6


def test_proposals_learn_from_results() -> None:
    of = new_ledger(40, "learning_rate=1e-5..1e-1:log", "lora_rank=8,16")
    drive(of, complete)
    scores = [score(point) for point in of.points()]
    assert sum(scores[-15:]) / 15 > sum(scores[:10]) / 10


def test_a_missing_metric_ends_the_search_at_once() -> None:
    of = new_ledger(5, *AXES, metric="dev/scroe")
    with pytest.raises(ConfigError, match=r"point 1, s-1, .*did you mean 'dev/score'"):
        drive(of, complete)
    with pytest.raises(ConfigError, match="kitchen sweep resume s --maximise METRIC"):
        drive(of, complete)
    change_objective(of, Objective("dev/score", "maximise"))
    assert drive(of, complete).started == [2, 3, 4, 5]
    with pytest.raises(ConfigError, match="did you mean 'dev/score'"):  # of a finished search
        change_objective(of, Objective("dev/scor", "maximise"))
    assert of.sweep().search == Search(5, "dev/score", "maximise", 0, list(AXES))


def test_running_points_are_stopped_if_the_metric_is_missing() -> None:
    of = new_ledger(5, *AXES, metric="dev/scroe")

    def second_runs_on(of: Ledger, point: Point) -> int | None:
        return complete(of, point) if point.number == 1 else None

    with pytest.raises(ConfigError, match="did you mean"):
        drive(of, second_runs_on, jobs=2)
    assert [status.state for status in of.statuses()] == ["completed", "waiting"][: len(values(of))]


def test_metrics_can_be_named_without_after() -> None:
    search = Search(2, "dev/f1", "maximise", 0, AXES)
    of = new_ledger(2, *AXES)
    [point] = of.points()
    status = PointStatus(point, "completed", metrics={"dev/f1_before": 0.1, "dev/f1_after": 0.2})
    assert best(search, [status]) == (status, 0.2)
    assert best(search, [replace(status, state="failed")]) is None


def test_settings_that_the_recipe_refuses_fail_their_point() -> None:
    of = new_ledger(6, "epochs=1..3:uniform", "lora_rank=4,8")
    search = of.sweep().search
    assert search
    of.write_search(replace(search, axes=["epochs=-30..3:uniform", "lora_rank=4,8"]))

    def accept(of: Ledger, point: Point) -> int:
        record(of, point, "completed", metrics={"dev/score": 1.0})
        return 0

    executor = drive(of, accept)
    failed = [status for status in of.statuses() if status.state == "failed"]
    assert failed
    assert "epochs" in failed[0].reason
    assert len(executor.started) + len(failed) == len(of.points()) == 6


def test_first_points_have_all_values_and_bounds() -> None:
    axes = parse_axes(AXES)
    points = first_points(Search(2, "loss", "minimise", 0, AXES), axes)
    for axis in axes:
        assert all(any(setting in point for point in points) for setting in axis.settings())


@pytest.mark.parametrize(
    ("points", "maximise", "minimise", "problem"),
    [
        (3, "", "", "needs the metric to optimise"),
        (None, "f1", "", "--optuna 20"),
        (3, "f1", "loss", "one metric"),
        (9, "f1", "", "only 2 combinations"),
    ],
)
def test_wrong_options_are_refused(
    points: int | None, maximise: str, minimise: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        checked_search(points, maximise, minimise)


def test_a_search_fits_into_its_ranges() -> None:
    ranks = ("lora_rank=8..10:uniform", "epochs=1,2")
    with pytest.raises(ConfigError, match="only 6 combinations"):
        checked_search(7, "f1", "", *ranks)
    checked_search(6, "f1", "", *ranks)
    checked_search(7, "f1", "", *ranks, "learning_rate=1e-5..1e-1:log")


def checked_search(points: int | None, maximise: str, minimise: str, *texts: str) -> None:
    axes = parse_axes(texts or ["seed=0,1"])
    search = find_search(points, find_objective(maximise, minimise), 0, axes)
    assert search
    check_search(search, axes)


def test_only_searches_have_an_objective() -> None:
    of = new_ledger(2, *AXES)
    plain = Ledger(FakeBlobs(), "p")
    points = of.points()
    plain.create(Sweep("p", "", {}, [points[0].digest], "local", 1, 1, "/"), points)
    with pytest.raises(ConfigError, match="is no search"):
        change_objective(plain, Objective("loss", "minimise"))

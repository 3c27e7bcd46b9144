"""Handles of runs: events, status, results, errors and cancellation, from any thread."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Event, Outcome, Run
from kitchen.engine.observers import Observer, StageStarted
from kitchen.errors import ApiError, BackendError, ConfigError, Interrupted, RunFailed
from recipes.sl_basic import SlBasic
from tests.support.debug_log import debug_log
from tests.support.stew import GREETINGS, SMALL, Gate, Stew, cancelled_at, rows

pytestmark = pytest.mark.usefixtures("here")


def test_events_come_in_order_with_steps_and_losses() -> None:
    events: list[Event] = []
    run = kitchen.submit(SlBasic, **GREETINGS, on_progress=events.append)
    outcome = run.result()
    assert [event.kind for event in events] == [
        "start",
        *["progress"] * len(rows(outcome)),
        "complete",
    ]
    steps = [event for event in events if "grad_norm" in event.metrics and event.kind == "progress"]
    assert [event.step for event in steps] == list(range(1, 16))
    assert {event.epoch for event in steps} == {1}
    assert [event.loss for event in steps] == [
        row["loss"] for row in rows(outcome) if "grad_norm" in row
    ]
    assert events[-1].metrics == outcome.metrics
    assert {event.run for event in events} == {run.id}
    late: list[Event] = []
    run.on_progress(late.append)
    assert late == [events[0], events[-1]]


def test_late_listener_that_waits_does_not_block_the_run() -> None:
    gate, heard = Gate(4), list[str]()
    run = kitchen.submit(Stew, training="fake", on_progress=gate)
    assert gate.reached.wait(60)

    def late(event: Event) -> None:
        heard.append(event.kind)
        if event.kind == "start":
            gate.open.set()
            assert run.result(60).metrics["stirred"] == 10

    run.on_progress(late)
    assert heard == ["start", "complete"]


def test_resumed_run_reports_metrics_of_all_attempts() -> None:
    run = cancelled_at(9, SlBasic, **GREETINGS, name="mine")
    with pytest.raises(Interrupted):
        run.result()
    for _ in range(2):  # the second time it is completed: nothing is done again
        events: list[Event] = []
        again = kitchen.resume("mine", on_progress=events.append)
        outcome = again.result()
        assert [events[0].kind, events[-1].kind] == ["start", "complete"]
        assert events[-1].metrics == outcome.metrics
        assert outcome.metrics["data/rows"] > 0, "published in the first attempt alone"
        assert (again.status().loss, again.status().done) == (outcome.loss, 1.0)
    assert len(events) == 2


def test_status_follows_the_run() -> None:
    gate = Gate(4)
    run = kitchen.submit(Stew, training="fake", on_progress=gate)
    assert gate.reached.wait(60)
    now = run.status()
    assert (now.state, now.step, now.steps, now.loss, now.done, now.epoch) == (
        "running",
        4,
        10,
        0.25,
        0.4,
        None,
    )
    assert now.stage == "Stir", "the last that began"
    assert not run.done()
    gate.open.set()
    run.result()
    after = run.status()
    assert (after.state, after.step, after.done) == ("completed", 10, pytest.approx(1))
    assert after == run.status(), "its clock stands still"
    assert run.done()


def test_timeout_of_a_result_leaves_the_run_going() -> None:
    gate = Gate(4)
    run = kitchen.submit(Stew, training="fake", on_progress=gate)
    with pytest.raises(TimeoutError, match=f"run '{run.id}' is not over after 0.05 s"):
        run.result(timeout=0.05)
    assert run.status().state == "running"
    gate.open.set()
    assert run.result(timeout=60).metrics["stirred"] == 10


def test_run_can_be_awaited_and_abandoned() -> None:
    async def wait() -> Outcome:
        gate = Gate(4)
        run = kitchen.submit(Stew, training="fake", on_progress=gate)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run, 0.05)
        gate.open.set()
        return await run

    assert asyncio.run(wait()).metrics["stirred"] == 10


def test_cook_in_an_event_loop_names_the_alternative() -> None:
    async def cook() -> None:
        kitchen.Kitchen(FakeTraining(), FakeDatasets(), None, FakeBlobs()).cook(Stew())

    with pytest.raises(
        ConfigError, match=r"an event loop is running here.*kitchen\.run or kitchen\.submit"
    ):
        asyncio.run(cook())


def test_run_does_not_wait_for_itself() -> None:
    runs: list[Run] = []
    known = threading.Event()
    runs.append(
        kitchen.submit(
            Stew, training="fake", on_progress=lambda event: known.wait(60) and runs[0].result()
        )
    )
    known.set()
    with pytest.raises(ConfigError, match="would wait for itself"):
        runs[0].result()


def test_failed_stage_keeps_its_cause_place_and_resume_call() -> None:
    run = kitchen.submit(Stew(spoil="salt"), training="fake")
    with pytest.raises(RunFailed) as error:
        run.result()
    assert re.fullmatch(
        r"ZeroDivisionError: no salt left \(.*stew\.py:\d+ in run\)", str(error.value)
    )
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert error.value.exit_code == 1
    assert error.value.__notes__ == [
        f"in {Stew.title()} > Spoil",
        f"to resume: kitchen.resume('{run.id}')",
    ]
    assert run.status().state == "failed"


def test_code_that_fails_again_suggests_no_resume() -> None:
    with pytest.raises(RunFailed) as error:
        kitchen.run(Stew(spoil="salt", save=0), training="fake", name="mine")
    assert error.value.__notes__ == [f"in {Stew.title()} > Spoil"]


def test_error_of_a_server_keeps_status_and_body() -> None:
    with pytest.raises(ApiError) as error:
        kitchen.run(Stew(spoil="api"), training="fake", runs="elsewhere", name="mine")
    assert (error.value.status, error.value.body, error.value.exit_code) == (
        503,
        '{"error": "busy"}',
        4,
    )
    assert error.value.__notes__[-1] == "to resume: kitchen.resume('mine', runs='elsewhere')"


@pytest.mark.parametrize(("save", "hints"), [(0, 0), (3, 1)])
def test_a_lacking_backend_suggests_resume_after_a_save_point(save: int, hints: int) -> None:
    with pytest.raises(BackendError) as error:
        kitchen.run(Stew(spoil="model", save=save), training="fake", name="mine")
    calls = [note for note in error.value.__notes__ if note.startswith("to resume")]
    assert calls == ["to resume: kitchen.resume('mine')"] * hints


@pytest.mark.parametrize("kind", ["start", "progress", "complete"])
def test_listener_that_raises_fails_the_run(kind: str) -> None:
    def fall(event: Event) -> None:
        if event.kind == kind:
            raise KeyError("colour")

    run = kitchen.submit(Stew, training="fake", name="mine", on_progress=fall)
    with pytest.raises(RunFailed, match="KeyError: 'colour'"):
        run.result()
    assert json.loads(Path("runs/mine/run.json").read_text())["status"] == "failed"
    assert kitchen.resume("mine").result().metrics["stirred"] == 10


def test_cancelled_and_resumed_equals_uninterrupted() -> None:
    alone = kitchen.run(SlBasic, **GREETINGS, name="alone")
    run = cancelled_at(6, SlBasic, **GREETINGS, name="stopped")
    with pytest.raises(Interrupted, match="stopped at step 7, and saved") as error:
        run.result()
    assert error.value.exit_code == 130
    assert (
        run.status().state
        == json.loads(Path("runs/stopped/run.json").read_text())["status"]
        == "interrupted"
    )
    events: list[Event] = []
    again = kitchen.resume("stopped", on_progress=events.append).result()
    assert next(event.step for event in events if "grad_norm" in event.metrics) == 8
    assert rows(again) == rows(alone)
    assert again.metrics == alone.metrics
    assert alone.checkpoint is not None
    assert again.checkpoint is not None
    assert again.checkpoint.sha256 == alone.checkpoint.sha256


def test_cancel_outside_loops_abandons_a_waiting_stage() -> None:
    simmering = threading.Event()

    class Watch(Observer):
        def stage_started(self, event: StageStarted) -> None:
            if event.stage.title() == "Simmer":
                simmering.set()

    run = kitchen.submit(Stew(simmer=600.0), training="fake", observers=(Watch(),))
    assert simmering.wait(60)
    run.cancel()
    with pytest.raises(Interrupted, match="abandoned"):
        run.result(60)
    assert run.status().state == "interrupted"


def test_cancel_is_not_a_ctrl_c() -> None:
    with pytest.raises(Interrupted, match="and saved"):
        cancelled_at(3, Stew, training="fake").finish()


def test_cancel_stops_before_the_next_stage() -> None:
    run = cancelled_at(3, Stew(save=0), training="fake")
    with pytest.raises(Interrupted, match="stopped before Taste"):
        run.result(60)
    assert run.status().step == 3


def test_cancel_at_once_does_not_save() -> None:
    run = cancelled_at(4, Stew(), training="fake", name="mine", at_once=True)
    with pytest.raises(Interrupted):
        run.result(60)
    events: list[Event] = []
    assert kitchen.resume("mine", on_progress=events.append).result().metrics["stirred"] == 10
    assert next(event.step for event in events if event.metrics) == 4, (
        "from the save point after step 3"
    )
    over = kitchen.resume("mine", on_progress=events.append)
    over.cancel()
    assert over.result().metrics["stirred"] == 10, "it was completed before"


def test_concurrent_runs_equal_sequential_ones() -> None:
    orders: list[tuple[Any, dict[str, Any]]] = [
        (SlBasic, {**GREETINGS, "settings": {**SMALL, "seed": 1}}),
        (
            SlBasic,
            {**GREETINGS, "settings": {**SMALL, "seed": 2, "learning_rate": 0.1, "ahead": 2}},
        ),
        ("recipes.sl_basic", {**GREETINGS, "settings": {**SMALL, "dataset": "sums"}}),
        (Stew, {"training": "fake", "settings": {"minutes": 30}}),
    ]
    barrier = threading.Barrier(4)

    def cook(number: int, together: bool) -> tuple[Outcome, list[Event]]:
        events: list[Event] = []

        def listen(event: Event) -> None:
            events.append(event)
            if together and (
                event.kind == "start" or (event.step == 3 and "loss" in event.metrics)
            ):
                barrier.wait(60)

        recipe, asked = orders[number]
        return kitchen.run(recipe, **asked, on_progress=listen, name=f"{number}-{together}"), events

    with debug_log():
        alone = [cook(number, False) for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda number: cook(number, True), range(4)))
    for (first, events), (second, events_together) in zip(alone, together, strict=True):
        assert first.metrics == second.metrics
        assert rows(first) == rows(second)
        assert log(first) == log(second)
        assert (first.checkpoint and first.checkpoint.sha256) == (
            second.checkpoint and second.checkpoint.sha256
        )
        assert [(event.kind, event.step, event.metrics) for event in events] == [
            (event.kind, event.step, event.metrics) for event in events_together
        ]
        assert {event.run for event in events_together} == {second.run}


def log(outcome: Outcome) -> list[tuple[str, ...]]:
    return [
        tuple(
            str(row.get(key)).replace(outcome.run, "") for key in ("event", "stage", "step", "run")
        )
        for row in rows(outcome, "log")
    ]

"""Failures after which resuming a run can help."""

from __future__ import annotations

import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen.engine.plan import PlanError
from kitchen.errors import (
    ApiError,
    BackendError,
    ConfigError,
    CorruptCheckpoint,
    DataError,
    Diverged,
    Interrupted,
    QualityError,
    ResumeError,
    RunFailed,
    SessionLost,
)
from kitchen.runs.resumable import has_outside_cause, has_save_point, resuming_can_help
from stages.tasks.step_results import WrongResult
from stages.tasks.subprocesses import WorkerEnded


def recorded(*, saved: bool) -> FakeBlobs:
    """Return a store with a run, which has a save point or none."""
    blobs = FakeBlobs()
    blobs.write("mine/run.json", b"{}")
    blobs.write("mine/save/plan", b"0")
    if saved:
        blobs.write("mine/save/000001.json", b"{}")
    return blobs


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    "kind", [ConfigError, DataError, Diverged, PlanError, QualityError, ResumeError]
)
def test_mistakes_fail_again(kind: type[Exception], saved: bool) -> None:
    assert not resuming_can_help(kind("wrong"), recorded(saved=saved), "mine")


def caused(cause: BaseException) -> RunFailed:
    """Return an error that was raised from another one."""
    failure = RunFailed("it failed")
    failure.__cause__ = cause
    return failure


OUTSIDE = (
    KeyboardInterrupt(),
    Interrupted("stopped"),
    SessionLost("gone"),
    ApiError("busy", status=503),
    OSError(28, "No space left on device"),
    TimeoutError(),
    MemoryError(),
    caused(WorkerEnded("its process ended with status -9")),
    caused(OSError(28, "No space left on device")),
    caused(caused(ConnectionResetError())),
    ExceptionGroup("several", [KeyError("a"), caused(TimeoutError())]),
)
INSIDE = (
    RunFailed("none of 3 rollouts has a reward"),
    CorruptCheckpoint("damaged"),
    ZeroDivisionError(),
    KeyError("reward"),
    WrongResult("rated returned 0.5, and must return a StepResult"),
    caused(KeyError("reward")),
    ExceptionGroup("several", [KeyError("a"), ValueError()]),
)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("failure", OUTSIDE)
def test_causes_outside_of_a_run_may_be_gone(failure: BaseException, saved: bool) -> None:
    assert has_outside_cause(failure)
    assert resuming_can_help(failure, recorded(saved=saved), "mine")


@pytest.mark.parametrize("failure", INSIDE)
def test_the_same_code_fails_again_from_the_start(failure: BaseException) -> None:
    assert not has_outside_cause(failure)
    assert not resuming_can_help(failure, recorded(saved=False), "mine")
    assert resuming_can_help(failure, recorded(saved=True), "mine")


def test_a_lacking_backend_needs_a_save_point() -> None:
    failure = BackendError("there is no model")
    assert not resuming_can_help(failure, recorded(saved=False), "mine")
    assert resuming_can_help(failure, recorded(saved=True), "mine")


def test_a_run_without_a_record_cannot_be_resumed() -> None:
    assert not resuming_can_help(RunFailed("no space left"), FakeBlobs(), "mine")
    assert not has_save_point(FakeBlobs(), "mine")

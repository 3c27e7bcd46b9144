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
    QualityError,
    ResumeError,
    RunFailed,
    SessionLost,
)
from kitchen.runs.resumable import has_save_point, resuming_can_help


def recorded(*, saved: bool) -> FakeBlobs:
    """Return a store with a run, which has a save point or none."""
    blobs = FakeBlobs()
    blobs.write("mine/run.json", b"{}")
    blobs.write("mine/save/plan", b"0")
    if saved:
        blobs.write("mine/save/000001.json", b"{}")
    return blobs


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("kind", [ConfigError, DataError, PlanError, ResumeError])
def test_mistakes_fail_again(kind: type[Exception], saved: bool) -> None:
    assert not resuming_can_help(kind("wrong"), recorded(saved=saved), "mine")


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    "failure",
    [
        RunFailed("no space left"),
        CorruptCheckpoint("damaged"),
        QualityError("too low"),
        ZeroDivisionError(),
        KeyboardInterrupt(),
        SessionLost("gone"),
        ApiError("busy", status=503),
    ],
)
def test_other_failures_may_not_repeat(failure: BaseException, saved: bool) -> None:
    assert resuming_can_help(failure, recorded(saved=saved), "mine")


def test_a_lacking_backend_needs_a_save_point() -> None:
    failure = BackendError("there is no model")
    assert not resuming_can_help(failure, recorded(saved=False), "mine")
    assert resuming_can_help(failure, recorded(saved=True), "mine")


def test_a_run_without_a_record_cannot_be_resumed() -> None:
    assert not resuming_can_help(RunFailed("no space left"), FakeBlobs(), "mine")
    assert not has_save_point(FakeBlobs(), "mine")

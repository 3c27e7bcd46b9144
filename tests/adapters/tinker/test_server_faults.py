"""A run through a server gives the same metrics whatever faults its requests meet."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen import Observer, StageDone
from kitchen.errors import RunFailed, SessionLost
from kitchen.runs.store import read_journal
from kitchen.types import Lora
from tests.support.debug_log import debug_log
from tests.support.fake_runs import run_recipe
from tests.support.faulty_app import Fault, FaultyApp
from tests.support.polling import wait_until
from tests.support.tinker_server import KEY, ByteTinker, RunningServer, application, serving

PATHS = ("forward_backward", "optim_step", "retrieve_future", "save_weights", "asample")
QUICK = (
    ("reset", "forward_backward"),
    ("lost", "optim_step"),
    ("busy", "asample"),
    ("truncated", "retrieve_future"),
)
KINDS = ("busy", "busy_for_a_second", "broken", "reset", "lost", "truncated", "slow")


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", KEY)
        return run_with(())[0]


def run_with(
    faults: tuple[Fault, ...], recipe: str = "sl_basic", journal: str = "log", **settings: Any
) -> tuple[list[dict[str, Any]], FaultyApp, Sequence[Mapping[str, Any]]]:
    """Run a recipe through a faulty server; return its metrics, the application and a journal."""
    server_blobs, blobs, wrapped = FakeBlobs(), FakeBlobs(), list[FaultyApp]()

    def wrap(app: Any) -> Any:
        wrapped.append(FaultyApp(app, faults))
        return wrapped[0]

    with serving(FakeTraining(server_blobs), server_blobs, wrap=wrap) as server:
        rows = run_recipe(recipe, ByteTinker(blobs, server.url), blobs, **settings)
        return rows, wrapped[0], read_journal(blobs, "run", journal)


@pytest.mark.parametrize(
    "kind, path",
    [
        pytest.param(kind, path, marks=[] if (kind, path) in QUICK else pytest.mark.slow)
        for kind in KINDS
        for path in PATHS
    ],
)
def test_fault_does_not_change_the_metrics(
    expected: list[dict[str, Any]], kind: str, path: str
) -> None:
    rows, app, _ = run_with((Fault(kind, path),))
    assert app.injected == 1
    assert rows == expected


@pytest.mark.parametrize(
    "fault",
    [
        Fault("expired", "forward_backward", (7,)),
        Fault("expired", "optim_step", (5,)),
        Fault("expired", "retrieve_future", (30,)),
        Fault("expired", "save_weights", (2,)),
    ],
    ids=str,
)
def test_expired_session_is_reopened(expected: list[dict[str, Any]], fault: Fault) -> None:
    rows, app, _ = run_with((fault,))
    assert app.injected == 1
    assert rows == expected


@pytest.mark.usefixtures("letters")
def test_session_expired_while_sampling_or_opening() -> None:
    undisturbed, _, _ = run_with((), "rl")
    for fault in (Fault("expired", "asample", (6,)), Fault("expired", "create_model", (1,))):
        rows, app, _ = run_with((fault,), "rl")
        assert app.injected == 1, fault
        assert rows == undisturbed, fault


def test_absent_server_fails_pending_requests(capsys: pytest.CaptureFixture[str]) -> None:
    server_blobs, blobs = FakeBlobs(), FakeBlobs()
    app = FaultyApp(application(FakeTraining(server_blobs), server_blobs), (), latency=30.0)
    server = RunningServer(app)
    session = ByteTinker(blobs, server.url, away=1.0, patience=1.0).open("tiny", Lora(rank=4))
    saving = session.save("one")
    wait_until(lambda: any(path.endswith("/retrieve_future") for path in app.requests))
    server.stop()
    with pytest.raises(SessionLost, match=r"away|reached"):
        saving.result(60)
    session.close()
    assert capsys.readouterr().err.count("waiting for the server") == 1


def test_closing_does_not_wait_for_a_server() -> None:
    """The session is still opening: the SDK holds its lock until the server has answered."""
    server_blobs, wrapped = FakeBlobs(), list[FaultyApp]()

    def wrap(app: Any) -> Any:
        wrapped.append(FaultyApp(app, (Fault("held", "create_session", (1,)),)))
        return wrapped[0]

    with serving(FakeTraining(server_blobs), server_blobs, wrap=wrap) as server:
        session = ByteTinker(FakeBlobs(), server.url).open("tiny", Lora(rank=4, seed=1))
        [app] = wrapped
        wait_until(lambda: app.injected == 1)
        closing = threading.Thread(target=session.close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
        assert not app.gate.is_set()
        app.gate.set()
        wait_until(lambda: any(path.endswith("/finish") for path in app.requests))


def test_failed_result_ends_the_run_with_its_message() -> None:
    with pytest.raises(RunFailed, match="the machine behind it is gone"):
        run_with((Fault("failed", "retrieve_future", (20,)),))


def test_session_lost_three_times_ends_the_run() -> None:
    with pytest.raises(SessionLost, match="expired"):
        run_with((Fault("expired", "forward_backward", tuple(range(3, 100))),))


def test_queued_requests_are_reported_in_the_run_log(expected: list[dict[str, Any]]) -> None:
    rows, app, log = run_with((Fault("paused", "retrieve_future", (20, 21)),))
    assert app.injected == 2
    assert rows == expected
    entries = [row for row in log if "requests" in str(row.get("event"))]
    assert [row["event"].split(";")[0] for row in entries] == [
        "the server holds requests",
        "the server lets requests through again",
    ]
    assert entries[0]["why"] == "it has no capacity at the moment"


def test_requests_are_logged_in_their_own_run_only() -> None:
    with debug_log():
        logs = [run_with((Fault("busy", "optim_step", (3,)),))[2], run_with(())[2]]
    busy, quiet = [[row for row in log if row.get("event") == "request"] for log in logs]
    for rows in (busy, quiet):
        steps = [row for row in rows if row["path"] == "optim_step" and row["status"] == 200]
        assert len(steps) == 15
        assert all(row["client"] == "TrainingClient" and row["seconds"] > 0 for row in steps)
    assert [row["status"] for row in busy if row["path"] == "optim_step"].count(429) == 1
    assert not any(row["status"] == 429 for row in quiet)
    assert any(row["retries"] == 1 for row in busy)
    assert KEY not in str(logs)


def test_port_calls_count_their_own_retries() -> None:
    runs = [run_with((Fault("busy", "optim_step", (3,)),), journal="requests")[2]]
    runs.append(run_with((), journal="requests")[2])
    for rows, retries in zip(runs, (1, 0), strict=True):
        steps = [row for row in rows if row["verb"] == "optim_step"]
        assert sum(row["retries"] for row in rows) == sum(row["retries"] for row in steps)
        assert sum(row["retries"] for row in steps) == retries
        assert {row["http_status"] for row in steps} == {200}
        assert len(steps) == 15


class Restart(Observer):
    """Kills the server after a number of stages, and starts another in its place."""

    def __init__(self, server_blobs: FakeBlobs, after: int) -> None:
        self._server_blobs, self._after, self._count = server_blobs, after, 0
        self.server = RunningServer(application(FakeTraining(server_blobs), server_blobs))
        self.restarts = 0

    def stage_done(self, event: StageDone) -> None:
        self._count += 1
        if self._count == self._after:
            self.restarts += 1
            self.server.stop()
            # a while later, so that requests find nobody
            threading.Timer(0.3, self._start).start()

    def _start(self) -> None:
        app = application(FakeTraining(self._server_blobs), self._server_blobs)
        self.server = RunningServer(app, self.server.port)


@pytest.mark.parametrize(
    "after, ahead",
    [
        pytest.param(after, ahead, marks=[] if (after, ahead) == (40, 1) else pytest.mark.slow)
        for after in (12, 25, 40, 55, 70)
        for ahead in (0, 1)
    ],
)
def test_server_is_killed_and_restarted(
    expected: list[dict[str, Any]], after: int, ahead: int
) -> None:
    server_blobs, blobs = FakeBlobs(), FakeBlobs()
    restart = Restart(server_blobs, after)
    try:
        training = ByteTinker(blobs, restart.server.url)
        rows = run_recipe("sl_basic", training, blobs, ahead=ahead, observers=[restart])
    finally:
        restart.server.stop()
    assert restart.restarts == 1
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses == [row["loss"] for row in expected if "loss" in row]

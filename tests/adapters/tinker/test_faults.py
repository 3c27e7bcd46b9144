"""Whatever befalls a request, a run through a server comes to what it comes to without."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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
from tests.adapters.tinker.dishes import cooked
from tests.adapters.tinker.faults import Fault, Faulty
from tests.adapters.tinker.serving import KEY, ByteTinker, Served, application, serving

PATHS = ("forward_backward", "optim_step", "retrieve_future", "save_weights", "asample")
AT_ONCE = (
    ("reset", "forward_backward"),
    ("lost", "optim_step"),
    ("busy", "asample"),
    ("truncated", "retrieve_future"),
)
KINDS = ("busy", "busy_for_a_second", "broken", "reset", "lost", "truncated", "slow")


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", "tml-of-these-tests")
        return faulty(())[0]


def faulty(
    faults: tuple[Fault, ...], recipe: str = "sl_basic", **settings: Any
) -> tuple[list[dict[str, Any]], Faulty, Sequence[Mapping[str, Any]]]:
    """The metrics of the run, what befell it, and its log."""
    kept, blobs, around = FakeBlobs(), FakeBlobs(), list[Faulty]()

    def wrap(app: Any) -> Any:
        around.append(Faulty(app, faults))
        return around[0]

    with serving(FakeTraining(kept), kept, wrap=wrap) as served:
        rows = cooked(recipe, ByteTinker(blobs, served.url), blobs, **settings)
        return rows, around[0], read_journal(blobs, "run", "log")


@pytest.mark.parametrize(
    "kind, path",
    [
        pytest.param(kind, path, marks=[] if (kind, path) in AT_ONCE else pytest.mark.slow)
        for kind in KINDS
        for path in PATHS
    ],
)
def test_a_fault_changes_nothing(expected: list[dict[str, Any]], kind: str, path: str) -> None:
    rows, around, _ = faulty((Fault(kind, path),))
    assert around.befell == 1
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
def test_a_session_that_expires_is_opened_again(
    expected: list[dict[str, Any]], fault: Fault
) -> None:
    rows, around, _ = faulty((fault,))
    assert around.befell == 1
    assert rows == expected


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    "fault", [Fault("expired", "asample", (6,)), Fault("expired", "create_model", (1,))], ids=str
)
def test_a_session_that_expires_while_it_is_sampled_or_opened(fault: Fault) -> None:
    rows, around, _ = faulty((fault,), "rl")
    assert around.befell == 1
    assert rows == faulty((), "rl")[0]


def test_a_server_that_stays_away_is_given_up(tmp_path: Path) -> None:
    kept, blobs = FakeBlobs(), FakeBlobs()
    served = Served(Faulty(application(FakeTraining(kept), kept), (), latency=30.0))
    session = ByteTinker(blobs, served.url, away=1.0, patience=1.0).open("tiny", Lora(rank=4))
    asked = session.save("one")
    time.sleep(0.5)
    served.stop()
    with pytest.raises(SessionLost, match=r"away|reached"):
        asked.result(60)
    session.close()


def test_to_close_a_session_waits_for_no_server() -> None:
    """One that is opening: the SDK holds its lock until the server has answered."""
    kept, around = FakeBlobs(), list[Faulty]()

    def wrap(app: Any) -> Any:
        around.append(Faulty(app, (Fault("held", "create_session", (1,)),)))
        return around[0]

    with serving(FakeTraining(kept), kept, wrap=wrap) as served:
        session = ByteTinker(FakeBlobs(), served.url).open("tiny", Lora(rank=4, seed=1))
        until(lambda: around[0].befell == 1)
        closing = threading.Thread(target=session.close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
        assert not around[0].gate.is_set()
        around[0].gate.set()
        until(lambda: any(path.endswith("/finish") for path in around[0].seen))


def until(there: Callable[[], bool]) -> None:
    for _ in range(1000):
        if there():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come to pass in 20 s")


def test_a_future_that_fails_on_the_server_ends_the_run_with_what_it_said() -> None:
    with pytest.raises(RunFailed, match="the machine behind it is gone"):
        faulty((Fault("failed", "retrieve_future", (20,)),))


def test_a_session_that_is_lost_for_the_third_time_ends_the_run() -> None:
    with pytest.raises(SessionLost, match="expired"):
        faulty((Fault("expired", "forward_backward", tuple(range(3, 100))),))


def test_a_server_that_lets_requests_wait_is_told_of_in_the_log_of_the_run(
    expected: list[dict[str, Any]],
) -> None:
    rows, around, log = faulty((Fault("paused", "retrieve_future", (20, 21)),))
    assert around.befell == 2
    assert rows == expected
    told = [row for row in log if "requests" in str(row.get("event"))]
    assert [row["event"].split(";")[0] for row in told] == [
        "the server holds requests",
        "the server lets requests through again",
    ]
    assert told[0]["why"] == "it has no capacity at the moment"


def test_each_request_is_in_the_log_of_its_run_and_of_no_other() -> None:
    logs = [faulty((Fault("busy", "optim_step", (3,)),))[2], faulty(())[2]]
    told = [[row for row in log if row.get("event") == "request"] for log in logs]
    for rows in told:
        steps = [row for row in rows if row["path"] == "optim_step" and row["status"] == 200]
        assert len(steps) == 15
        assert all(row["client"] == "TrainingClient" and row["seconds"] > 0 for row in steps)
    assert [row["status"] for row in told[0] if row["path"] == "optim_step"].count(429) == 1
    assert not any(row["status"] == 429 for row in told[1])
    assert any(row["retries"] == 1 for row in told[0])
    assert KEY not in str(logs)


class Restarting(Observer):
    """Kills the server while the run is under way, and starts another in its place."""

    def __init__(self, kept: FakeBlobs, at: int) -> None:
        self._kept, self._at, self._count = kept, at, 0
        self.served = Served(application(FakeTraining(kept), kept))
        self.restarts = 0

    def stage_done(self, event: StageDone) -> None:
        self._count += 1
        if self._count == self._at:
            self.restarts += 1
            self.served.stop()
            threading.Thread(target=self._start).start()

    def _start(self) -> None:
        time.sleep(0.3)
        self.served = Served(application(FakeTraining(self._kept), self._kept), self.served.port)


@pytest.mark.parametrize(
    "at, ahead",
    [
        pytest.param(at, ahead, marks=[] if (at, ahead) == (40, 1) else pytest.mark.slow)
        for at in (12, 25, 40, 55, 70)
        for ahead in (0, 1)
    ],
)
def test_a_server_that_is_killed_and_started_again(
    expected: list[dict[str, Any]], tmp_path: Path, at: int, ahead: int
) -> None:
    kept, blobs = FakeBlobs(), FakeBlobs()
    killer = Restarting(kept, at)
    try:
        rows = cooked(
            "sl_basic", ByteTinker(blobs, killer.served.url), blobs, ahead=ahead, observers=[killer]
        )
    finally:
        killer.served.stop()
    assert killer.restarts == 1
    assert [row.get("loss") for row in rows if "loss" in row] == [
        row["loss"] for row in expected if "loss" in row
    ]

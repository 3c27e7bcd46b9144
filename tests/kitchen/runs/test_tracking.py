"""Guards of trackers: one that fails changes nothing, and a resumed run sends what is missing."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import structlog

from adapters.fake.blobs import FakeBlobs
from kitchen import Metrics
from kitchen.errors import BackendError
from kitchen.runs.tracking import MAX_SAMPLES, QUEUE_SIZE, read_memory
from kitchen.types import Facts, Samples, Table
from tests.support.polling import wait_until
from tests.support.scripted_tracker import Blocked, ScriptedTracker, TrackedEvents, raising

METHODS = ("open", "metrics", "table", "flush", "close")
TABLE = Table("Scores", ("set", "score"), (("dev", "0.5"),))


def journal(*rows: Mapping[str, Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def test_a_tracker_receives_what_a_run_publishes() -> None:
    tracker = ScriptedTracker()
    events = TrackedEvents(tracker)
    events.start()
    events.publish(0, Metrics(loss=2.0), Facts(device="cpu"), TABLE, step=3)
    events.publish(3, Metrics(), Samples(()))
    events.end()
    assert tracker.numbers == [0, 2]
    assert tracker.tables == [("Scores", [["set", "score"], ["dev", "0.5"]])]
    assert tracker.statuses == ["completed"]
    assert tracker.runs[0].settings == {"learning_rate": 1e-4}
    assert events.outcomes == {"t0": {"state": "sent", "sent": 2}}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)], ids=["error", "exit"])
def test_an_error_of_a_tracker_reaches_no_other(method: str, error: BaseException) -> None:
    failing, healthy = ScriptedTracker(raising(method, error)), ScriptedTracker()
    events = TrackedEvents(failing, healthy)
    events.start()
    events.publish(0, Metrics(loss=2.0), TABLE)
    events.end()
    assert events.outcomes["t0"]["state"] == "failed"
    assert type(error).__name__ in events.outcomes["t0"]["reason"]
    assert events.outcomes["t1"] == {"state": "sent", "sent": 2}


@pytest.mark.parametrize("method", METHODS)
def test_a_tracker_that_hangs_is_given_up(method: str) -> None:
    blocked = Blocked(method)
    tracker = ScriptedTracker(blocked)
    events = TrackedEvents(tracker)
    events.start()
    events.publish(0, Metrics(loss=2.0), TABLE)
    if method not in ("flush", "close"):  # they come at the end
        assert blocked.reached.wait(60)
    events.end(0.0)
    assert events.outcomes["t0"]["state"] == "failed"
    assert events.outcomes["t0"]["unsent"] > 0
    received = list(tracker.numbers)
    blocked.released.set()
    events.publish(2)
    assert tracker.numbers in (received, [*received, 0], [*received, 1])


def test_a_failure_is_one_line_of_the_log() -> None:
    tracker = ScriptedTracker(raising("metrics", ValueError("broken")))
    with structlog.testing.capture_logs() as entries:
        events = TrackedEvents(tracker)
        events.start()
        for number in range(5):
            events.publish(number)
        events.end()
    [entry] = entries
    assert entry["tracker"] == "t0"
    assert "broken" in entry["why"]


def test_values_beyond_the_queue_give_a_tracker_up() -> None:
    blocked = Blocked("open")
    events = TrackedEvents(ScriptedTracker(blocked))
    events.start()
    for number in range(QUEUE_SIZE + 1):
        events.publish(number)
    events.end(0.0)
    blocked.released.set()
    assert "values were waiting" in events.outcomes["t0"]["reason"]
    assert events.outcomes["t0"]["unsent"] == QUEUE_SIZE + 1


def test_a_resumed_run_sends_what_was_not_confirmed() -> None:
    first = ScriptedTracker()
    killed = TrackedEvents(first)
    killed.start()
    killed.publish(0, step=0)
    killed.publish(1, step=1)
    wait_until(lambda: read_memory(killed.blobs, "r", "t0").get("number") == 1)
    second = ScriptedTracker()
    resumed = TrackedEvents(second, blobs=killed.blobs)
    resumed.start()
    for step in (1, 2, 3):  # from the save point on
        resumed.publish(step, step=step)
    resumed.end()
    assert second.numbers == [2, 3]
    assert second.runs[0].key == first.runs[0].key


def test_a_resumed_run_sends_what_only_journals_have() -> None:
    blobs = FakeBlobs()
    rows = [{"n": n, "stage": "S", "step": n, "loss": 1.0, "seconds": 0.1} for n in (0, 1, 4)]
    blobs.write("r/metrics.jsonl", journal(*rows))
    table = {"n": 2, "stage": "S", "step": 1, "title": "T", "columns": ["a"], "rows": [["1"]]}
    blobs.write("r/tables.jsonl", journal(table))
    sample = {"n": 3, "stage": "S", "step": 1}
    blobs.write("r/samples.jsonl", journal({**sample, "text": "a"}, {**sample, "f1": 0.5}))
    tracker = ScriptedTracker()
    events = TrackedEvents(tracker, blobs=blobs)
    events.start()
    events.publish(4, step=4)
    events.publish(5, step=5)
    events.end()
    assert tracker.numbers == [0, 1, 2, 3, 4, 5]
    samples = ("samples of S", [["text", "f1"], ["a", ""], ["", 0.5]])
    assert tracker.tables == [("T", [["a"], ["1"]]), samples]


def test_a_tracker_that_confirms_nothing_gets_all_again() -> None:
    blobs = FakeBlobs()
    blobs.write("r/metrics.jsonl", journal({"n": 0, "stage": "S", "step": 0, "loss": 1.0}))
    first, second = ScriptedTracker(confirms=False), ScriptedTracker(confirms=False)
    events = TrackedEvents(first, blobs=blobs)
    events.start()
    wait_until(lambda: first.numbers == [0])
    again = TrackedEvents(second, blobs=blobs)
    again.start()
    again.end()
    assert second.numbers == [0]
    assert second.statuses == ["completed"]
    assert again.outcomes["t0"] == {"state": "sent", "sent": 1}


def test_values_after_a_loop_have_its_last_step() -> None:
    tracker = ScriptedTracker()
    events = TrackedEvents(tracker)
    events.start()
    events.publish(0)
    events.publish(1, step=7)
    events.publish(2)
    events.end()
    assert tracker.steps == [0, 7, 7]


def test_each_run_has_a_key_of_its_own() -> None:
    blobs = FakeBlobs()
    trackers = ScriptedTracker(), ScriptedTracker()
    for name, tracker in zip("ab", trackers, strict=True):
        events = TrackedEvents(tracker, blobs=blobs, run=name)
        events.start()
        events.end()
    keys = {tracker.runs[0].key for tracker in trackers}
    assert len(keys) == 2
    assert all(len(key) == 32 for key in keys)


def test_a_tracker_gets_no_secrets_and_reveals_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter22hunter22")
    tracker = ScriptedTracker(raising("close", BackendError("401 for hunter22hunter22")))
    events = TrackedEvents(tracker)
    events.start()
    rows: tuple[dict[str, Any], ...] = ({"text": "key hunter22hunter22"},) * (MAX_SAMPLES + 1)
    events.publish(0, Samples(rows))
    events.end()
    [(_, [_, *cells])] = tracker.tables
    assert cells == [["key ***"]] * MAX_SAMPLES
    assert events.outcomes["t0"]["reason"] == "401 for ***"


def test_a_damaged_journal_gives_the_tracker_up() -> None:
    blobs = FakeBlobs()
    blobs.write("r/metrics.jsonl", b"{\n")
    events = TrackedEvents(ScriptedTracker(), blobs=blobs)
    events.start()
    events.publish(5)
    events.end()
    assert "metrics.jsonl has a damaged line" in events.outcomes["t0"]["reason"]


def test_a_metric_that_is_no_number_fails_only_the_tracker() -> None:
    events = TrackedEvents(ScriptedTracker())
    events.start()
    events.publish(0, Metrics(loss=None))  # type: ignore[arg-type]
    events.end()
    assert events.outcomes["t0"]["state"] == "failed"


def test_a_damaged_memory_gives_the_tracker_up() -> None:
    blobs = FakeBlobs()
    blobs.write("r/trackers/t0.json", b"{}")
    tracker = ScriptedTracker()
    events = TrackedEvents(tracker, blobs=blobs)
    events.start()
    events.end()
    assert "r/trackers/t0.json is damaged" in events.outcomes["t0"]["reason"]
    assert "or delete it, and all values are sent again" in events.outcomes["t0"]["reason"]
    assert not tracker.runs


def test_a_tracker_that_was_given_up_holds_no_values() -> None:
    blocked = Blocked("open")
    events = TrackedEvents(ScriptedTracker(blocked))
    events.start()
    metrics = Metrics(loss=1.0)
    weak = weakref.ref(metrics)
    events.publish(0, metrics)
    events.end(0.0)
    del metrics
    assert weak() is None
    blocked.released.set()

"""Tracking of a run: each tracker behind a guard with a thread, a bounded queue and a memory.

A tracker cannot harm its run. It works on a separate thread; its errors become a line of the log
and an entry of run.json; and at the end the run waits for all trackers less than a second.

A guard remembers in the run's folder, `trackers/NAME.json`, the number of the last value that the
tracker has confirmed. A resumed run sends the values after it: first the ones that are only in the
journals, because the run does not compute them again, then the ones that it publishes.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from secrets import token_hex
from typing import Any, TypeGuard

import structlog

from kitchen.config.order import Order, order_json
from kitchen.config.trackers import build_trackers
from kitchen.engine.observers import Observer, StageDone
from kitchen.errors import BackendError, ConfigError, KitchenError, describe_error
from kitchen.ports.blobs import BlobStore
from kitchen.runs.lock import lease
from kitchen.runs.record import final_status
from kitchen.runs.sealed import read_sealed, write_sealed
from kitchen.runs.store import read_journal, read_run, write_run
from kitchen.runs.tracker import Position, TrackedRun, Tracker
from kitchen.secrets import mask, masked
from kitchen.types import Metrics, Samples, Table
from kitchen.workflow import Step

END_SECONDS = 0.7  # that the end of a run waits for all of its trackers together
QUEUE_SIZE = 10_000  # values that wait for a tracker before it is given up
MAX_SAMPLES = 100  # of each publication, which are all that a tracker gets
_FLUSH_SECONDS = 1.0
_ROW_KEYS = ("n", "stage", "step")  # of a row in a journal, besides its values
_NOT_METRICS = (*_ROW_KEYS, "seconds")


@dataclass(frozen=True)
class Value:
    """A published value on its way to trackers."""

    at: Position
    published: Metrics | Table | Samples


class TrackerGuard:
    """Runs one tracker on its own thread; no method raises what the tracker raises."""

    def __init__(self, name: str, tracker: Tracker, blobs: BlobStore, run: TrackedRun) -> None:
        self.name = name
        self._tracker = tracker
        self._blobs = blobs
        self._file = _memory_name(run.name, name)
        self._log = structlog.get_logger("kitchen.runs.tracking")
        self._queue: queue.Queue[Value | str] = queue.Queue(QUEUE_SIZE)  # the text is the status
        self._backlog: deque[Value] = deque()  # values of earlier attempts
        self._lock = threading.Lock()  # around the file and the decision to give up
        self._reason = ""  # why it was given up
        self._done = threading.Event()
        self._memory: dict[str, Any] = {}
        try:
            self._memory = read_memory(blobs, run.name, name)
        except ConfigError as error:
            self.give_up(str(error))
        self._run = replace(run, key=self._memory.get("key") or token_hex(16))
        self._last_offered = self._number
        # numbers of values in this process: offered to the queue, sent, and sent durably
        self._offered = self._sent = self._confirmed = 0

    @property
    def _number(self) -> int:
        """Number of the last value that the tracker has confirmed."""
        return int(self._memory.get("number", -1))

    @property
    def _unsent(self) -> int:
        return self._offered - (self._sent if self._tracker.hands_over else self._confirmed)

    @property
    def outcome(self) -> Mapping[str, Any]:
        """The entry for run.json."""
        unsent = self._unsent
        outcome = {"state": "failed" if self._reason else "sent", "sent": self._offered - unsent}
        failure = {"unsent": unsent, "reason": self._reason}
        return outcome | failure if self._reason else outcome

    def start(self, backlog: Sequence[Value] = ()) -> None:
        """Start the thread, with the log of the current run and values of earlier attempts."""
        self._backlog.extend(value for value in backlog if value.at.number > self._number)
        if self._backlog:
            self._last_offered = self._backlog[-1].at.number
            self._offered = len(self._backlog)
        context = contextvars.copy_context()
        name = f"tracker {self.name}"
        threading.Thread(target=context.run, args=(self._work,), name=name, daemon=True).start()

    def offer(self, value: Value) -> None:
        """Put a value into the queue, unless it was there already or the tracker failed."""
        if value.at.number <= self._last_offered:
            return
        self._last_offered = value.at.number
        self._offered += 1
        if not self._reason:
            self._put(value)

    def end(self, status: str) -> None:
        """Announce the final status of the run."""
        if not self._reason:
            self._put(status)

    def _put(self, item: Value | str) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.give_up(f"{QUEUE_SIZE:,} values were waiting for it")

    def wait(self, deadline: float | None) -> None:
        """Wait until the tracker has everything, or a time of the monotonic clock; give it up."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            done = bool(self._reason) or self._done.wait(timeout)
        except KeyboardInterrupt:  # the run is over, and only its trackers are not
            self.give_up("the user interrupted it")
            return
        if not done and not (self._tracker.hands_over and not self._unsent):
            self.give_up(f"it had not confirmed {self._unsent:,} values when the run ended")

    def _work(self) -> None:
        try:
            if self._reason:
                return
            if "key" not in self._memory:  # before the tracked run exists
                self._remember(self._number, self._tracker.state())
            self._tracker.open(self._run, self._memory["state"])
            self._remember(self._number, self._tracker.state())
            self._send_all()
        except BaseException as error:  # noqa: BLE001 it must not reach the run
            self.give_up(mask(describe_error(error)))
        finally:
            self._done.set()

    def _send_all(self) -> None:
        """Send values until the status of the run comes, and flush about every second."""
        next_flush = time.monotonic() + _FLUSH_SECONDS
        number = self._number
        while not self._reason:
            item = self._next(next_flush)
            if isinstance(item, str):
                self._finish(number, item)
                return
            if item is not None:
                self._send(item)
                number = item.at.number
            if time.monotonic() >= next_flush:
                self._flush(number)
                next_flush = time.monotonic() + _FLUSH_SECONDS

    def _next(self, until: float) -> Value | str | None:
        """Return what to send next; None if nothing comes until then."""
        if self._backlog:
            return self._backlog.popleft()
        try:
            return self._queue.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def _send(self, value: Value) -> None:
        if isinstance(value.published, Metrics):
            metrics = {name: float(number) for name, number in value.published.items()}
            self._tracker.metrics(value.at, metrics)
        else:
            table = masked(_as_table(value))
            self._tracker.table(value.at, *table)
        self._sent += 1

    def _flush(self, number: int) -> None:
        if self._sent > self._confirmed and self._tracker.flush():
            self._remember(number, self._tracker.state())

    def _finish(self, number: int, status: str) -> None:
        self._flush(number)
        if not self._reason:
            self._tracker.close(status)
            self._remember(number, self._tracker.state(), status)

    def _remember(self, number: int, state: Mapping[str, Any], status: str = "") -> None:
        """Store the number of the last confirmed value, unless the run no longer waits for it."""
        memory = {"key": self._run.key, "number": number, "state": state, "status": status}
        with self._lock:
            if not self._reason:
                write_sealed(self._blobs, self._file, masked(memory))
                self._memory = memory
                self._confirmed = self._sent

    def give_up(self, reason: str) -> None:
        """Send nothing from now on; the reason becomes one line of the log."""
        with self._lock:
            if self._reason or self._done.is_set():
                return
            self._reason = reason
        self._backlog.clear()
        with self._queue.mutex:  # values that a hanging tracker would hold in memory
            self._queue.queue.clear()
        text = "the tracker gets no more of this run; `kitchen resume` sends the rest"
        self._log.warning(text, tracker=self.name, why=reason)


class Trackers(Observer):
    """The trackers of a run, each behind a guard."""

    def __init__(
        self,
        blobs: BlobStore,
        run: str,
        order: Order,
        trackers: Mapping[str, Tracker],
        report: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """`report` receives, at the end, an entry of run.json for each tracker by name."""
        self._blobs = blobs
        self._run = run
        self._report = report
        self._last_step = 0
        tracked = TrackedRun(
            run, "", order.recipe, masked(order.settings), order.adapters, blobs.locate(run)
        )
        self._guards = [TrackerGuard(name, each, blobs, tracked) for name, each in trackers.items()]

    def run_started(self, run: str, step: Step) -> None:
        self._start()

    def _start(self) -> None:
        if not self._guards:
            return  # without reading the journals
        backlog: list[Value] = []
        try:
            backlog += self._recorded()
        except ConfigError as error:  # lost rows, which the user accepted; others can be sent later
            for guard in self._guards:
                guard.give_up(str(error))
        for guard in self._guards:
            guard.start(backlog)

    def stage_done(self, event: StageDone) -> None:
        if event.location.loops:
            self._last_step = event.progress.step
        for number, published in enumerate(event.published, event.number):
            if _is_tracked(published):
                if isinstance(published, Samples):
                    published = Samples(published.rows[:MAX_SAMPLES])
                at = Position(number, self._last_step, event.stage.title())
                for guard in self._guards:
                    guard.offer(Value(at, published))

    def run_ended(self, error: BaseException | None) -> None:
        self.finish(final_status(error), END_SECONDS)

    def finish(self, status: str, seconds: float | None) -> None:
        """Announce the status, and wait for all trackers together; None: as long as it takes."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for guard in self._guards:
            guard.end(status)
        for guard in self._guards:
            guard.wait(deadline)
        self._report({guard.name: guard.outcome for guard in self._guards})

    def send_recorded(self, status: str) -> None:
        """Send what the record of a run has and trackers lack, however long it takes."""
        self._start()
        self.finish(status, None)

    def _recorded(self) -> Iterator[Value]:
        """Yield the values that earlier attempts recorded."""
        for value in _recorded_values(self._blobs, self._run):
            # a journal does not tell loops apart; outside of one, the step is 0
            self._last_step = value.at.step or self._last_step
            yield replace(value, at=replace(value.at, step=self._last_step))


def _is_tracked(published: Any) -> TypeGuard[Metrics | Table | Samples]:
    """Return whether trackers get a published value: not facts, and nothing that is empty."""
    if isinstance(published, Samples):
        return bool(published.rows)
    return isinstance(published, Table) or (isinstance(published, Metrics) and bool(published))


def _recorded_values(blobs: BlobStore, run: str) -> Sequence[Value]:
    """Return the values in the journals of a run, sorted by number."""
    values = [
        Value(_position(row), Metrics(_without(row, _NOT_METRICS)))
        for row in read_journal(blobs, run, "metrics")
    ]
    for row in read_journal(blobs, run, "tables"):
        values.append(Value(_position(row), Table(row["title"], row["columns"], row["rows"])))
    samples: dict[int, list[Mapping[str, Any]]] = {}
    for row in read_journal(blobs, run, "samples"):
        samples.setdefault(row["n"], []).append(row)
    values += [Value(_position(rows[0]), Samples(tuple(rows))) for rows in samples.values()]
    return sorted(values, key=lambda value: value.at.number)


def _position(row: Mapping[str, Any]) -> Position:
    return Position(row["n"], row["step"], row["stage"])


def _without(row: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: row[key] for key in row if key not in keys}


def _as_table(value: Value) -> tuple[str, Sequence[str], Sequence[Sequence[Any]]]:
    """Return title, columns and rows; samples have a column for each key that any of them has."""
    if isinstance(value.published, Table):
        return value.published.title, value.published.columns, value.published.rows
    assert isinstance(value.published, Samples)
    samples = [_without(row, _ROW_KEYS) for row in value.published.rows[:MAX_SAMPLES]]
    columns = list(dict.fromkeys(chain.from_iterable(samples)))
    empty = dict.fromkeys(columns, "")
    rows = [list({**empty, **sample}.values()) for sample in samples]
    return f"samples of {value.at.stage}", columns, rows


def _memory_name(run: str, tracker: str) -> str:
    return f"{run}/trackers/{tracker}.json"


def read_memory(blobs: BlobStore, run: str, tracker: str) -> dict[str, Any]:
    """Return what is remembered of a tracker, empty at first; raises ConfigError if damaged."""
    name = _memory_name(run, tracker)
    try:
        return {} if blobs.read(name) is None else read_sealed(blobs, name)
    except ConfigError as error:
        raise ConfigError(
            f"{error}, or delete it, and all values are sent again, to a new tracked run"
        ) from error


def prepared_trackers(blobs: BlobStore, run: str, order: Order) -> Mapping[str, Tracker]:
    """Build the trackers of a run; raises ConfigError or BackendError if one cannot be used."""
    trackers: dict[str, Tracker] = build_trackers(order.observers)
    for name, tracker in trackers.items():
        try:
            tracker.prepare(read_memory(blobs, run, name).get("state", {}))
        except KitchenError:
            raise
        except Exception as error:
            reason = mask(describe_error(error))
            raise BackendError(f"the tracker {name!r} cannot be used: {reason}") from error
    return trackers


def send_missing(blobs: BlobStore, run: str, order: Order) -> Mapping[str, Any]:
    """Send what the record of a completed run has and its trackers lack, however long it takes.

    Returns an entry for each of these trackers, as in run.json, where they are recorded, too.
    Raises ConfigError for a run in use.
    """
    incomplete = {
        name: settings
        for name, settings in order.observers.items()
        if read_memory(blobs, run, name).get("status") != "completed"
    }
    outcomes: dict[str, Any] = {}
    if incomplete:
        with lease(blobs, run):
            trackers = prepared_trackers(blobs, run, replace(order, observers=incomplete))
            Trackers(blobs, run, order, trackers, outcomes.update).send_recorded("completed")
            record = read_run(blobs, run)
            recorded = {**record.get("trackers", {}), **outcomes}
            observers = {**record["order"], "observers": order_json(order)["observers"]}
            write_run(blobs, run, masked({**record, "order": observers, "trackers": recorded}))
    return outcomes

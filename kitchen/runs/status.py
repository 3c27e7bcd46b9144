"""Status of a run in progress, and the events that its listeners receive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kitchen.backend.work import Work
from kitchen.engine.observers import Observer, StageDone, StageStarted
from kitchen.types import Metrics
from kitchen.workflow import ForEach, Step, walk


@dataclass(frozen=True)
class Status:
    """The state and progress of a run."""

    state: Literal["running", "completed", "failed", "interrupted"] = "running"
    # iteration of the loop around the innermost one, from 1; None where there is none
    epoch: int | None = None
    step: int = 0  # iteration of the innermost loop, from 1, in all epochs
    steps: int | None = None  # iterations of the innermost loop in all epochs; None if unknown
    loss: float | None = None  # the last one published
    done: float | None = 0.0  # share of the outermost loop, 0..1; None if unknown
    seconds: float = 0.0  # since this process started or resumed the run
    stage: str = ""  # the one that started last
    work: Work | None = None  # progress within the stage, if it reports any


EventKind = Literal["start", "progress", "complete"]


@dataclass(frozen=True)
class Event:
    """A message to listeners: the run has started, published metrics, or is complete."""

    kind: EventKind
    run: str
    recipe: str
    epoch: int | None
    step: int
    loss: float | None
    seconds: float
    metrics: Mapping[str, float]  # those just published; when complete, the last of each


Listener = Callable[[Event], object]


class WorkObserver(Observer):
    """An observer that also receives the progress of the work within a stage."""

    def work_reported(self, work: Work) -> None:
        """Work has progressed; called from any thread, many times per second."""


class RunStatus(WorkObserver):
    """Tracks a run; `status` is replaced, never changed, so that any thread may read it."""

    def __init__(
        self, run: str, recipe: str, listener: Listener | None, earlier: Mapping[str, float]
    ) -> None:
        self._run = run
        self._recipe = recipe
        self._listeners = [listener] if listener else []
        # never held while a listener is called, which may wait for the run
        self._lock = threading.Lock()
        self._start_time = time.perf_counter()
        self._end_time = 0.0
        self._innermost: set[str] = set()  # titles of loops that contain no loop
        self._metrics = dict(earlier)  # the last of each, earlier attempts included
        self._history: list[Event] = []  # all events except progress
        self._status = Status(loss=self._metrics.get("loss"))
        self._work: Work | None = None  # apart, because any thread may set it

    @property
    def status(self) -> Status:
        end = self._end_time or time.perf_counter()
        return replace(self._status, work=self._work, seconds=end - self._start_time)

    @property
    def started(self) -> bool:
        return bool(self._history)

    def listen(self, listener: Listener) -> None:
        """Add a listener, which first receives the start, and the completion if it has happened."""
        received = 0
        while True:
            with self._lock:
                missed = self._history[received:]
                if not missed:
                    self._listeners.append(listener)
                    return
            for event in missed:
                listener(event)
            received += len(missed)

    def finish(self, state: Literal["completed", "failed", "interrupted"]) -> None:
        self._end_time = time.perf_counter()
        done = 1.0 if state == "completed" else self._status.done
        self._status = replace(self._status, state=state, done=done)

    def run_started(self, run: str, step: Step) -> None:
        loops = [inner for inner in walk(step) if isinstance(inner, ForEach)]
        self._innermost = {loop.source.title() for loop in loops if not _has_loop(loop.body)}
        self._publish("start", {})

    def stage_started(self, event: StageStarted) -> None:
        self._status = replace(self._status, stage=event.stage.title())
        self._work = None

    def work_reported(self, work: Work) -> None:
        self._work = None if work.is_over else work

    def stage_done(self, event: StageDone) -> None:
        metrics: dict[str, float] = {}
        for value in event.published:
            if isinstance(value, Metrics):
                metrics |= value
        if event.replayed or not metrics:
            return
        loops = event.location.loops
        if loops and loops[-1].loop in self._innermost:
            inner = loops[-1]
            progress = event.progress
            self._status = replace(
                self._status,
                epoch=None if inner.epoch is None else inner.epoch + 1,
                step=inner.step + 1,
                steps=inner.total,
                done=None if progress.done is None else progress.done + progress.width,
            )
        self._status = replace(self._status, loss=metrics.get("loss", self._status.loss))
        self._metrics |= metrics
        self._publish("progress", metrics)

    def run_ended(self, error: BaseException | None) -> None:
        if error is None:
            self._publish("complete", dict(self._metrics))

    def _publish(self, kind: EventKind, metrics: Mapping[str, float]) -> None:
        now = self.status
        event = Event(
            kind, self._run, self._recipe, now.epoch, now.step, now.loss, now.seconds, metrics
        )
        with self._lock:
            if kind != "progress":
                self._history.append(event)
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(event)


def _has_loop(step: Step) -> bool:
    return any(isinstance(inner, ForEach) for inner in walk(step))

"""How a run stands, for those who ask and those who listen."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kitchen.engine.observers import Observer, StageDone
from kitchen.progress import Progress
from kitchen.stage import Stage
from kitchen.types import Metrics
from kitchen.workflow import ForEach, Step, walk

_IN_LOOP = re.compile(r"^(.*) step (\d+)$")


@dataclass(frozen=True)
class Status:
    """How a run stands."""

    state: Literal["running", "completed", "failed", "interrupted"] = "running"
    # iteration of the loop around the innermost one, from 1; None where there is none
    epoch: int | None = None
    step: int = 0  # iteration of the innermost loop, from 1, in all epochs
    steps: int | None = None  # how many there will be; None where nobody knows
    loss: float | None = None  # the last that was published
    done: float | None = 0.0  # share of the outermost loop, 0..1; None where nobody knows
    seconds: float = 0.0  # since this process began with the run
    stage: str = ""  # the last that began


@dataclass(frozen=True)
class Event:
    """Something that a run tells: that it has started, that a stage published numbers, that it is
    complete.
    """

    kind: Literal["start", "progress", "complete"]
    run: str
    recipe: str
    epoch: int | None
    step: int
    loss: float | None
    seconds: float
    metrics: Mapping[str, float]  # those just published; when complete, the last of each


Listener = Callable[[Event], object]


class RunStatus(Observer):
    """Follows a run. `status` is replaced, never changed, so that any thread may read it."""

    def __init__(
        self, run: str, recipe: str, listener: Listener | None, earlier: Mapping[str, float]
    ) -> None:
        self._run, self._recipe, self._listeners = run, recipe, [listener] if listener else []
        # never held while a listener is called, which may wait for the run
        self._lock = threading.Lock()
        self._begun, self._ended = time.perf_counter(), 0.0
        self._innermost: set[str] = set()  # titles of loops that have none inside
        self._metrics = dict(earlier)  # the last of each, those of earlier attempts included
        self._told: list[Event] = []  # but for progress
        self._status = Status(loss=self._metrics.get("loss"))

    @property
    def status(self) -> Status:
        return replace(self._status, seconds=(self._ended or time.perf_counter()) - self._begun)

    @property
    def started(self) -> bool:
        return bool(self._told)

    def listen(self, listener: Listener) -> None:
        heard = 0
        while True:
            with self._lock:
                missed = self._told[heard:]
                if not missed:
                    self._listeners.append(listener)
                    return
            for event in missed:
                listener(event)
            heard += len(missed)

    def over(self, state: Literal["completed", "failed", "interrupted"]) -> None:
        self._ended = time.perf_counter()
        done = 1.0 if state == "completed" else self._status.done
        self._status = replace(self._status, state=state, done=done)

    def began(self, run: str, step: Step) -> None:
        loops = [each for each in walk(step) if isinstance(each, ForEach)]
        self._innermost = {
            loop.source.title()
            for loop in loops
            if not any(isinstance(each, ForEach) for each in walk(loop.body))
        }
        self._tell("start", {})

    def entered(self, stage: Stage, progress: Progress) -> None:
        self._status = replace(self._status, stage=stage.title())

    def done(self, event: StageDone) -> None:
        metrics = {
            key: value
            for each in event.published
            if isinstance(each, Metrics)
            for key, value in each.items()
        }
        if event.replayed or not metrics:
            return
        around = [
            (found[1], int(found[2]))
            for part in event.where.split(" > ")
            if (found := _IN_LOOP.match(part))
        ]
        if around and around[-1][0] in self._innermost:
            at = event.progress
            self._status = replace(
                self._status,
                epoch=around[-2][1] + 1 if len(around) > 1 else None,
                step=at.step + 1,
                steps=round(1 / at.width) if at.width else None,
                done=None if at.done is None else at.done + at.width,
            )
        self._status = replace(self._status, loss=metrics.get("loss", self._status.loss))
        self._metrics |= metrics
        self._tell("progress", metrics)

    def ended(self, error: BaseException | None) -> None:
        if error is None:
            self._tell("complete", dict(self._metrics))

    def _tell(
        self, kind: Literal["start", "progress", "complete"], metrics: Mapping[str, float]
    ) -> None:
        now = self.status
        event = Event(
            kind, self._run, self._recipe, now.epoch, now.step, now.loss, now.seconds, metrics
        )
        with self._lock:
            if kind != "progress":
                self._told.append(event)
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(event)

"""A tracker that fails or waits where a test says so, and that remembers what it received."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapters.fake.blobs import FakeBlobs
from kitchen import Metrics, Stage, StageDone
from kitchen.config.order import Order
from kitchen.engine.observers import ObserverGroup
from kitchen.progress import NOWHERE, Progress
from kitchen.runs.tracker import Position, TrackedRun, Tracker
from kitchen.runs.tracking import Trackers
from kitchen.types import Published

ORDER = Order("recipes.sl_basic:SlBasic", {"learning_rate": 1e-4})


@dataclass
class ScriptedTracker(Tracker):
    """Calls `act` with the name of each method before anything else happens."""

    act: Callable[[str], object] = lambda method: None
    confirms: bool = True
    runs: list[TrackedRun] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    tables: list[tuple[str, list[Any]]] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> None:
        self.act("open")
        self.runs.append(run)

    def metrics(self, at: Position, values: Mapping[str, float]) -> None:
        self.act("metrics")
        self.numbers.append(at.number)
        self.steps.append(at.step)

    def table(
        self, at: Position, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        self.act("table")
        self.numbers.append(at.number)
        self.tables.append((title, [list(columns), *map(list, rows)]))

    def flush(self) -> bool:
        self.act("flush")
        return self.confirms

    def close(self, status: str) -> None:
        self.act("close")
        self.statuses.append(status)


@dataclass
class Publish(Stage):
    """A stage whose name is in the events of `TrackedEvents`."""


class TrackedEvents:
    """The trackers of a run, the events that they receive, and what run.json would say of them."""

    def __init__(self, *trackers: Tracker, blobs: FakeBlobs | None = None, run: str = "r") -> None:
        self.blobs = blobs or FakeBlobs()
        self.outcomes: dict[str, Any] = {}
        named = {f"t{index}": tracker for index, tracker in enumerate(trackers)}
        observer = Trackers(self.blobs, run, ORDER, named, self.outcomes.update)
        self.trackers = observer
        self._group = ObserverGroup((observer,))

    def start(self) -> None:
        self.trackers.run_started("", Publish())

    def publish(self, number: int, *values: Published, step: int | None = None) -> None:
        """Publish in the iteration `step` of a loop, or outside of loops."""
        published = values or (Metrics(loss=1.0),)
        progress = Progress(step=step or 0)
        location = NOWHERE if step is None else NOWHERE.iteration("batches", progress)
        event = StageDone(Publish(), progress, 0.0, published, number, False, location)
        self._group.stage_done(event)

    def end(self, seconds: float | None = None) -> None:
        self.trackers.finish("completed", seconds)


class Blocked:
    """A point at which a tracker waits until the test lets it go on."""

    def __init__(self, method: str) -> None:
        self._method = method
        self.reached = threading.Event()
        self.released = threading.Event()

    def __call__(self, method: str) -> None:
        if method == self._method:
            self.reached.set()
            self.released.wait()


def raising(method: str, error: BaseException) -> Callable[[str], None]:
    """Return a script that raises in one method."""

    def act(called: str) -> None:
        if called == method:
            raise error

    return act

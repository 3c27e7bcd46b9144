"""Observers of a run: the events they receive, and the base class to subclass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kitchen.progress import NOWHERE, Location, Progress
from kitchen.stage import Stage
from kitchen.types import Checkpoint, Published
from kitchen.workflow import Step


@dataclass(frozen=True)
class StageStarted:
    """A stage is about to run."""

    stage: Stage
    progress: Progress
    location: Location = NOWHERE


@dataclass(frozen=True)
class StageDone:
    """A stage has run.

    `number` counts the values that the run has published. A resumed run continues the count from
    its save point: an observer that keeps a log drops its entries from that number on. A `replayed`
    event was reported before, by an earlier process.
    """

    stage: Stage
    progress: Progress
    seconds: float
    published: tuple[Published, ...] = ()
    number: int = 0  # of the first of `published`
    replayed: bool = False
    location: Location = NOWHERE


@dataclass(frozen=True)
class WeightsSaved:
    """Weights have been exported by a stage."""

    checkpoint: Checkpoint
    progress: Progress
    location: Location = NOWHERE


@dataclass(frozen=True)
class SavePointDue:
    """A save point is about to be written."""

    progress: Progress
    location: Location = NOWHERE


class Observer:
    """Base class of trackers and other listeners: override the events that you need.

    Metrics arrive as `Metrics` in `StageDone.published`, tables as `Table`, samples as `Samples`.
    Pass it as `observers=` of `kitchen.run`. An error raised here fails the run.
    """

    def run_started(self, run: str, step: Step) -> None:
        """The plan is valid, and the first stage has not run yet."""

    def stage_started(self, event: StageStarted) -> None:
        """A stage is about to run."""

    def stage_done(self, event: StageDone) -> None:
        """A stage has run."""

    def weights_saved(self, event: WeightsSaved) -> None:
        """Weights have been exported by a stage."""

    def save_point_due(self, event: SavePointDue) -> None:
        """Write everything reported so far to disk before this returns."""

    def phase_done(self) -> None:
        """A step of the outermost sequence has finished."""

    def run_ended(self, error: BaseException | None) -> None:
        """The run is complete, or failed with `error`."""


class ObserverGroup(Observer):
    """Several observers as one, notified in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def run_started(self, run: str, step: Step) -> None:
        for observer in self._observers:
            observer.run_started(run, step)

    def stage_started(self, event: StageStarted) -> None:
        for observer in self._observers:
            observer.stage_started(event)

    def stage_done(self, event: StageDone) -> None:
        for observer in self._observers:
            observer.stage_done(event)

    def weights_saved(self, event: WeightsSaved) -> None:
        for observer in self._observers:
            observer.weights_saved(event)

    def save_point_due(self, event: SavePointDue) -> None:
        for observer in self._observers:
            observer.save_point_due(event)

    def phase_done(self) -> None:
        for observer in self._observers:
            observer.phase_done()

    def run_ended(self, error: BaseException | None) -> None:
        for observer in self._observers:
            observer.run_ended(error)

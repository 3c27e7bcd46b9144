"""Who listens to a run: what is told, and the base to subclass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kitchen.progress import Progress
from kitchen.stage import Stage
from kitchen.types import Checkpoint, Published
from kitchen.workflow import Step


@dataclass(frozen=True)
class StageDone:
    """Told after every stage.

    `number` counts what the run published. A resumed run goes on counting from its save point:
    whoever keeps a log drops what it has from that number on. What is `replayed` was told of
    before.
    """

    stage: Stage
    progress: Progress
    seconds: float
    published: tuple[Published, ...] = ()
    number: int = 0  # of the first of `published`
    replayed: bool = False
    where: str = ""  # the recipe, loops and steps around the stage


class Observer:
    """Subclass it and listen to what you need; an error raised here fails the run."""

    def began(self, run: str, step: Step) -> None:
        """The plan is sound; the first stage is next."""

    def entered(self, stage: Stage, progress: Progress) -> None:
        """A stage is about to run."""

    def done(self, event: StageDone) -> None:
        """A stage has run."""

    def saved(self, checkpoint: Checkpoint, progress: Progress) -> None:
        """Weights have been exported by a stage."""

    def keeping(self, progress: Progress) -> None:
        """A save point is about to be written: what was told so far must be safe when this returns."""

    def phase_over(self) -> None:
        """A step of the outermost sequence is over."""

    def ended(self, error: BaseException | None) -> None:
        """The run is over, or failed."""


class ObserverGroup(Observer):
    """Several observers as one, told in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def began(self, run: str, step: Step) -> None:
        for observer in self._observers:
            observer.began(run, step)

    def entered(self, stage: Stage, progress: Progress) -> None:
        for observer in self._observers:
            observer.entered(stage, progress)

    def done(self, event: StageDone) -> None:
        for observer in self._observers:
            observer.done(event)

    def saved(self, checkpoint: Checkpoint, progress: Progress) -> None:
        for observer in self._observers:
            observer.saved(checkpoint, progress)

    def keeping(self, progress: Progress) -> None:
        for observer in self._observers:
            observer.keeping(progress)

    def phase_over(self) -> None:
        for observer in self._observers:
            observer.phase_over()

    def ended(self, error: BaseException | None) -> None:
        for observer in self._observers:
            observer.ended(error)

"""Early stopping: a training loop ends if its evaluations do not improve any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import structlog
from pydantic import NonNegativeFloat, PositiveInt

from kitchen.errors import ConfigError
from kitchen.ports import BlobStore, Future
from kitchen.progress import Progress
from kitchen.stage import Contract, Need, Read, Stage
from kitchen.types import Table
from stages.evaluate.exports import ExportWeights, StartExports
from stages.evaluate.selection import BestConfig, HeldOutMeasures
from stages.train.early_stopping import EarlyStopper, StopState
from stages.train.schedules import PlannedSteps

T = TypeVar("T")
log = structlog.get_logger("stages.evaluate")


@dataclass(frozen=True)
class EarlyStopping:
    """Early stopping by the metric of `best`, such as `early_stopping.patience=3`."""

    # evaluations in a row without improvement after which training stops; null for no early
    # stopping
    patience: PositiveInt | None = None
    # an evaluation improves the metric if it is better than the best one before it by more than
    # this
    min_delta: NonNegativeFloat = 0.0

    def check(self, eval_every: int) -> None:
        """Raise ConfigError for early stopping without evaluations during training."""
        if self.patience is not None and eval_every == 0:
            raise ConfigError(
                f"early_stopping.patience={self.patience} needs evaluations during training, and "
                "eval_every=0 means none: set eval_every to the steps between two evaluations"
            )
        if self.patience is None and self.min_delta > 0:
            raise ConfigError(
                f"early_stopping.min_delta={self.min_delta:g} has no effect without early "
                "stopping: set early_stopping.patience to a number of evaluations"
            )


class StartEarlyStopping(Stage):
    """Start early stopping, before the first evaluation."""

    def run(self, blobs: BlobStore | None = None) -> EarlyStopper:
        return EarlyStopper(blobs)


class StopEarly(Stage):
    """Stop training if the metric has not improved for `patience` evaluations.

    It waits for the evaluation, so that training stops right after it. Loops end whose source was
    passed through `until_stopped`.
    """

    best: BestConfig
    config: EarlyStopping
    every: int  # steps between evaluations

    async def run(
        self, held_out: Future[HeldOutMeasures], stopper: EarlyStopper, progress: Progress
    ) -> None:
        if stopper.state.stopped_at:  # an iteration that was in flight when training stopped
            return
        step = progress.step + 1
        state = self._after(stopper.state, self.best.value(await held_out), step)
        exhausted = state.without_improvement >= (self.config.patience or 0)
        if exhausted and step != progress.total:
            state = replace(state, stopped_at=step, reason=self._reason(state))
            log.info(f"stopped early {state}")
        stopper.state = state

    def _after(self, state: StopState, value: float, step: int) -> StopState:
        """Return the state after one more evaluation."""
        gain = self.best.gain(value, state.best)
        count = 0 if gain > self.config.min_delta else state.without_improvement + 1
        if gain > 0:
            return StopState(value, step, count)
        return replace(state, without_improvement=count)

    def _reason(self, state: StopState) -> str:
        more = f" by more than {self.config.min_delta:g}" if self.config.min_delta else ""
        times = (
            "1 evaluation" if self.config.patience == 1 else f"{self.config.patience} evaluations"
        )
        best = "none" if state.best is None else f"{state.best:.4g} at step {state.best_step}"
        return f"{self.best.metric} has not improved{more} for {times} (best {best})"

    def preview(self, steps: PlannedSteps) -> Table:
        direction = "highest" if self.best.maximised else "lowest"
        evaluations = steps.count // self.every
        rows = [
            ("steps", f"at most {steps.count:,}"),
            ("evaluations", f"at most {evaluations:,}, one every {self.every:,} steps"),
            ("evaluations without improvement that stop", f"{self.config.patience:,}"),
            ("improvement of more than", f"{self.config.min_delta:g}"),
            ("best weights", f"those with the {direction} {self.best.metric}"),
        ]
        if evaluations <= (self.config.patience or 0):
            rows.append(("note", "it cannot stop: there are too few evaluations"))
        return Table("Early stopping", ("what", "value"), tuple(rows))


class _UntilStopped(Stage):
    """A loop source whose items end when training stops early; without that it yields all items.

    The number of items, and with it the learning rate schedule, stays that of the source.
    """

    ends_early = True
    source: Stage

    def run(self, stopper: EarlyStopper, **values: Any) -> Iterable[Any]:
        return _Items(self.source.run(**values), stopper)

    def contract(self) -> Contract:
        return self._contract

    @cached_property
    def _contract(self) -> Contract:
        inner = self.source.contract()
        return replace(inner, reads=(Read("stopper", EarlyStopper, False, False), *inner.reads))

    def without_roles(self) -> Stage:
        return self.source.without_roles()

    def role(self, kind: Any) -> Any:
        return self.source.role(kind)

    def title(self) -> str:
        return self.source.title()

    def __str__(self) -> str:
        return f"{self.source} until stopped early"

    def needs(self) -> Iterable[Need]:
        return self.source.needs()


@dataclass(frozen=True)
class _Items(Generic[T]):
    """Items that end when training stops."""

    items: Iterable[T]
    stopper: EarlyStopper

    def __len__(self) -> int:
        assert isinstance(self.items, Sized)
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        for item in self.items:
            if self.stopper.state.stopped_at:
                return
            yield item


def until_stopped(source: Stage, config: EarlyStopping) -> Stage:
    """Return a loop source that ends early; the source itself without early stopping."""
    return source if config.patience is None else _UntilStopped(source)


def start_exports(config: EarlyStopping) -> tuple[Stage, ...]:
    """Return the stages before the first evaluation during training."""
    stop = () if config.patience is None else (StartEarlyStopping(),)
    return (StartExports(), *stop)


def export_or_stop(best: BestConfig, config: EarlyStopping, every: int) -> tuple[Stage, ...]:
    """Return the stages after an evaluation during training: an export and early stopping."""
    stop = () if config.patience is None else (StopEarly(best, config, every),)
    return (ExportWeights(), *stop)

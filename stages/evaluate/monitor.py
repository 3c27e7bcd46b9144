"""A monitor: measures of the weights in training on a fixed sample, which may stop the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import structlog
from pydantic import Field, PositiveInt

from kitchen.config.user_functions import is_function_name
from kitchen.errors import ConfigError, DataError, QualityError
from kitchen.ports import CheckpointStore, Future, Sampler, Tokenizer, TrainingSession, start
from kitchen.progress import Progress
from kitchen.stage import Stage
from kitchen.statistics.intervals import Interval, interval
from kitchen.statistics.samples import NON_NEGATIVE
from kitchen.types import Checkpoint, Metrics, RunId
from kitchen.workflow import Step, every, when
from stages.chat.render import RenderDataset
from stages.data.dataset import Epoch, HeldOut
from stages.evaluate.checkpoint_eval import problem_scores
from stages.evaluate.choices import CHOICE_MEASURES
from stages.evaluate.evaluation import EvalConfig, Evaluation, evaluate
from stages.evaluate.graded_answers import ANSWER_MEASURES, score_bounds
from stages.evaluate.metric_functions import measure_of
from stages.evaluate.targets import TargetResult, Targets
from stages.train.session import retype_checkpoint

R = TypeVar("R")
log = structlog.get_logger("stages.evaluate")
_CHOICES = tuple(key for _, key in CHOICE_MEASURES)
_LOSSES = ("loss", "bits_per_byte")
# measures that a held-out set may have, by evaluation.metric; with another one, those of answers
HELD_OUT_MEASURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"auto": (*ANSWER_MEASURES, *_LOSSES), "choice": _CHOICES, "loss": _LOSSES}
)


@dataclass(frozen=True)
class MonitorConfig:
    """Limits of measures during training, such as `monitor.stop.at_least.exact_match=0.5`."""

    # optimiser steps between checks; epoch for a check after each pass over the data; 0 for none
    every: Annotated[int, Field(ge=0)] | Literal["epoch"] = 0
    # rows of the first held-out set that are evaluated, the same ones each time
    rows: PositiveInt = 32
    warn: Targets = field(default_factory=Targets)  # limits of the value: a warning in the log
    # limits of the whole 95 % interval: the run stops with exit code 5, and its weights are kept
    stop: Targets = field(default_factory=Targets)

    def __post_init__(self) -> None:
        if self.every == 0 and (self.warn != Targets() or self.stop != Targets()):
            raise ConfigError(
                "monitor has limits and monitor.every=0, so that nothing is checked: set "
                "monitor.every to a number of optimiser steps, or to epoch"
            )


@dataclass(frozen=True)
class Monitored:
    """Measures of the weights in training, on a fixed sample."""

    measures: Mapping[str, Interval]


@dataclass(frozen=True)
class MonitoredWeights(Checkpoint):
    """The weights that were measured; they are kept if the run stops."""


class EndOfEpoch(Stage):
    """Condition that holds at the last optimiser step of each pass over the data."""

    def run(self, epoch: Epoch, progress: Progress) -> bool:
        return progress.step + 1 == epoch.end


class SaveMonitored(Stage):
    """Save the weights that are measured, so that they are there if the run stops."""

    def run(
        self, session: TrainingSession, run: RunId, progress: Progress
    ) -> Future[MonitoredWeights]:
        path = f"{run.id}/weights/monitor-{progress.step + 1:06d}"
        saved = session.save_weights(path, overwrite=True)
        return start(retype_checkpoint(MonitoredWeights, saved))


class MonitorHeldOut(Stage):
    """Submit the first rows of the first held-out set for evaluation, without waiting."""

    config: EvalConfig
    render: RenderDataset
    rows: int = 32
    names: tuple[str, ...] = ()  # of the measures that have limits

    def run(
        self, session: TrainingSession, tokenizer: Tokenizer, held_out: HeldOut
    ) -> Future[Monitored]:
        name, rows = first_set(held_out.sets)
        sample = HeldOut({name: rows[: self.rows]})

        async def measure(sampler: Sampler) -> Mapping[str, Interval]:
            found = await evaluate(sampler, tokenizer, self.config, self.render, sample)
            return _measures(name, found)

        return start(measured(session.snapshot(), measure))

    def verify(self) -> None:
        metric = self.config.metric
        own = (measure_of(metric),) if is_function_name(metric) else ()
        check_measures(self.names, (*ANSWER_MEASURES, *_CHOICES, *_LOSSES, *own))
        given = own or HELD_OUT_MEASURES.get(metric, tuple(ANSWER_MEASURES))
        if missing := [name for name in self.names if name not in given]:
            raise ConfigError(
                f"monitor: {missing[0]} is not measured with evaluation.metric={metric}, which "
                f"measures {' and '.join(given)}: set another metric, or leave the limit out"
            )


def first_set(sets: Mapping[str, tuple[R, ...]]) -> tuple[str, tuple[R, ...]]:
    """Return the name and the rows of the first held-out set; raises DataError without rows."""
    name, rows = next(iter(sets.items()), ("", ()))
    if not rows:
        raise DataError(
            "the monitor needs held-out rows, and there are none: hold some out "
            "(reading.held_out_rows, reading.test), or set monitor.every=0"
        )
    return name, rows


async def measured(
    snapshot: Future[Sampler], measure: Callable[[Sampler], Awaitable[Mapping[str, Interval]]]
) -> Monitored:
    """Wait for a sampler, and measure it; the measure closes it."""
    return Monitored(await measure(await snapshot))


def check_measures(names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raise ConfigError for a limit of a measure that the recipe does not have."""
    Targets(dict.fromkeys(names, 0.0)).check_names("monitor", known)


def _measures(name: str, evaluation: Evaluation) -> dict[str, Interval]:
    """Return the measures of the one set that was evaluated."""
    found: dict[str, Interval] = {}
    answers = evaluation.answers.get(name, ())
    for (_, measure), values in problem_scores(answers, ()).items():
        if values:
            found[measure] = interval(values, bounds=score_bounds(answers, measure))
    choices = evaluation.choices.get(name, ())
    for (_, measure), score in CHOICE_MEASURES.items():
        if choices:
            found[measure] = interval([float(score(row)) for row in choices])
    if name in evaluation.losses:
        for measure, (_, totals, sizes) in evaluation.losses[name].measures().items():
            found[measure] = interval(totals, sizes, bounds=NON_NEGATIVE)
    return found


class ActOnMonitor(Stage):
    """Warn about measures beyond their limits, or stop the run.

    The run stops only if the whole interval is beyond the limit, so that chance alone rarely does
    it; a value beyond it is a warning, and so is a limit of a measure that has no value. A measure
    beyond both of its limits is one warning. The weights of a check that does not stop are deleted.
    Raises QualityError, exit code 5.
    """

    config: MonitorConfig

    def run(
        self,
        monitored: Monitored,
        weights: MonitoredWeights,
        checkpoints: CheckpointStore | None = None,
    ) -> Metrics:
        stopping = self.config.stop.check(monitored.measures)
        broken = [limit for limit in stopping if limit.verdict == "not met"]
        if broken:
            raise QualityError(
                f"stopped by the monitor after step {weights.step}: {_shown(broken)}; the weights "
                f"are kept as {weights.path}"
            )
        warned = (*self.config.warn.check(monitored.measures), *stopping)
        by_side = {(each.measure, each.side): each for each in warned if not each.estimate_meets}
        beyond = list(by_side.values())
        if beyond:
            log.warning(f"monitor, after step {weights.step}: {_shown(beyond)}")
        if checkpoints is not None:
            checkpoints.delete(weights)
        metrics = {f"monitor/{name}": found.estimate for name, found in monitored.measures.items()}
        return Metrics({**metrics, "monitor/warnings": float(len(beyond))})


def _shown(limits: list[TargetResult]) -> str:
    cells = [limit.cells() for limit in limits]
    return "; ".join(f"{measure} is {value}, not {target}" for measure, target, value, *_ in cells)


def monitor_steps(config: MonitorConfig, measure: Stage) -> tuple[Step, ...]:
    """Return the steps of a monitor for the body of a training loop; none if it is off.

    `measure` returns Future[Monitored].
    """
    if config.every == 0:
        return ()
    due: Any = when(EndOfEpoch()) if config.every == "epoch" else every(int(config.every))
    return (due(SaveMonitored(), measure, ActOnMonitor(config)),)


def limited_measures(config: MonitorConfig) -> tuple[str, ...]:
    """Return the names of the measures that have limits."""
    return tuple(dict.fromkeys((*config.warn.names, *config.stop.names)))


def monitor_held_out(
    config: MonitorConfig, evaluation: EvalConfig, render: RenderDataset
) -> tuple[Step, ...]:
    """Return the steps of a monitor of the first held-out set."""
    names = limited_measures(config)
    return monitor_steps(config, MonitorHeldOut(evaluation, render, config.rows, names))

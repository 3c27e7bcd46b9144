"""Learning-rate schedules: constant, linear and cosine, each after a linear warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from kitchen.errors import ConfigError, did_you_mean

_MAX_PLANNED = 100_000_000  # examples of a run, in order, which take 8 bytes each or more


class Schedule(Protocol):
    """A learning-rate schedule: a frozen value whose repr is part of a run's fingerprint."""

    def __call__(self, done: float, width: float, /) -> float:
        """Return the learning rate of a step that starts at share `done` of the run.

        The step is the share `width` of the run: of S steps, step s from 0 has done = s/S and
        width = 1/S.
        """
        ...


@dataclass(frozen=True)
class Constant:
    """Warm-up over W steps, peak * (s+1)/W at step s < W; then `peak`."""

    peak: float
    warmup_steps: int = 0  # optimiser steps

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup_steps, floor=0.0)

    def __call__(self, done: float, width: float, /) -> float:
        return self.peak * _warmup_factor(done, width, self.warmup_steps)


@dataclass(frozen=True)
class Linear:
    """Warm-up as in Constant; then linear decay to `floor`, reached one step after the last."""

    peak: float
    warmup_steps: int = 0  # optimiser steps
    floor: float = 0.0  # learning rate

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup_steps, self.floor)

    def __call__(self, done: float, width: float, /) -> float:
        left = 1.0 - _decay_progress(done, width, self.warmup_steps)
        return _interpolate(self.peak, self.floor, left) * _warmup_factor(
            done, width, self.warmup_steps
        )


@dataclass(frozen=True)
class Cosine:
    """Warm-up as in Constant; then half a cosine from `peak` to `floor`.

    Loshchilov and Hutter, 2017, arXiv:1608.03983, eq. 5, without restarts.
    """

    peak: float
    warmup_steps: int = 0  # optimiser steps
    floor: float = 0.0  # learning rate

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup_steps, self.floor)

    def __call__(self, done: float, width: float, /) -> float:
        left = 0.5 * (1.0 + math.cos(math.pi * _decay_progress(done, width, self.warmup_steps)))
        return _interpolate(self.peak, self.floor, left) * _warmup_factor(
            done, width, self.warmup_steps
        )


@dataclass(frozen=True)
class PlannedSteps:
    """The number of optimiser steps of a run, as far as it is known before it starts."""

    count: int


def check_planned(batch_size: int, steps: int) -> None:
    """Raise ConfigError for more examples than can be put in order before a run."""
    if batch_size * steps > _MAX_PLANNED:
        raise ConfigError(
            f"batch_size={batch_size} times steps={steps} is more than {_MAX_PLANNED:,} examples, "
            "whose order is planned before a run: lower one of them"
        )


def unreached_peak(schedule: Schedule, steps: int) -> str:
    """Return a sentence if the warm-up of a schedule is longer than the run; else ""."""
    warmup = getattr(schedule, "warmup_steps", 0)
    if warmup <= steps:
        return ""
    return (
        f"warmup_steps={warmup} is longer than the run of {steps} optimiser steps, so the learning "
        f"rate reaches only {schedule((steps - 1) / steps, 1 / steps):g}; lower warmup_steps"
    )


ScheduleName = Literal["constant", "linear", "cosine"]
SCHEDULES: Mapping[str, type[Constant] | type[Linear] | type[Cosine]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
}


def make_schedule(name: str, peak: float, warmup_steps: int = 0) -> Schedule:
    """Return a schedule by name; raises ConfigError for an unknown name or invalid numbers."""
    if name not in SCHEDULES:
        raise ConfigError(f"schedule {name!r} is unknown; {did_you_mean(name, SCHEDULES)}")
    return SCHEDULES[name](peak, warmup_steps)


def _warmup_factor(done: float, width: float, warmup_steps: int) -> float:
    """Return the factor of warm-up; it is not 0 at the first step, which would waste that step."""
    if not warmup_steps:
        return 1.0
    return min(1.0, (round(done / width) + 1) / warmup_steps)


def _decay_progress(done: float, width: float, warmup_steps: int) -> float:
    """Return the progress from the end of warm-up to the end of the run, 0..1."""
    past = round(done / width) - warmup_steps
    total = round(1.0 / width) - warmup_steps
    return min(1.0, past / total) if past > 0 and total > 0 else 0.0


def _interpolate(peak: float, floor: float, left: float) -> float:
    return min(peak, max(floor, peak * left + floor * (1.0 - left)))  # exact where left is 0 or 1


def _check(peak: float, warmup_steps: int, floor: float) -> None:
    if not (math.isfinite(peak) and peak > 0):
        raise ConfigError(f"the learning rate {peak} must be above 0")
    if warmup_steps < 0:
        raise ConfigError(f"warmup_steps={warmup_steps} must be 0 or more")
    if not 0 <= floor <= peak:
        raise ConfigError(f"floor={floor} must lie between 0 and the learning rate {peak}")

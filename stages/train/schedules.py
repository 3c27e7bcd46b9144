"""Learning-rate schedules: constant, linear, cosine or a user's function, after linear warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from kitchen.config.user_functions import (
    FunctionName,
    call_in_run,
    check_positional,
    import_function,
    is_function_name,
)
from kitchen.errors import ConfigError, RunFailed, did_you_mean

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
class FunctionSchedule:
    """Warm-up as in Constant, times `peak`, times a factor by a user's function of the step.

    The function is called as f(step, steps), with the optimiser step from 0 and the number of steps
    of the run, and returns a finite number of at least 0. Raises ConfigError if it cannot be
    imported or called so, and RunFailed for an error in it or another result.
    """

    function: str  # MODULE:function
    peak: float
    warmup_steps: int = 0  # optimiser steps

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup_steps, floor=0.0)
        check_positional(SETTING, self.function, self._call, "f(step, steps)")

    def __call__(self, done: float, width: float, /) -> float:
        step, steps = round(done / width), round(1.0 / width)
        factor = call_in_run(SETTING, self.function, self._call, step, steps)
        is_number = isinstance(factor, int | float | np.number) and not isinstance(factor, bool)
        if not is_number or not 0 <= factor < math.inf:
            raise RunFailed(
                f"{SETTING}={self.function} returned {factor!r:.80} for step {step} of {steps}; it "
                "must return a factor of the learning rate, a finite number of at least 0"
            )
        return self.peak * float(factor) * _warmup_factor(done, width, self.warmup_steps)

    @cached_property
    def _call(self) -> Callable[..., Any]:
        return import_function(SETTING, self.function)


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


SETTING = "schedule"
ScheduleName = Literal["linear", "cosine", "constant"] | FunctionName
SCHEDULES: Mapping[str, type[Constant] | type[Linear] | type[Cosine]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
}


def make_schedule(name: str, peak: float, warmup_steps: int = 0) -> Schedule:
    """Return a schedule by its name or that of a function, MODULE:function.

    Raises ConfigError for an unknown name or invalid numbers.
    """
    if is_function_name(name):
        return FunctionSchedule(name, peak, warmup_steps)
    if name not in SCHEDULES:
        near = did_you_mean(name, SCHEDULES)
        raise ConfigError(f"{SETTING}={name!r} is unknown; {near} (or a MODULE:function)")
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

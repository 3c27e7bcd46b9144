"""Learning rates over a run: constant, linear and cosine, each after a linear warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from kitchen.errors import ConfigError, did_you_mean


class Schedule(Protocol):
    """A frozen value with a stable repr: it is part of a run's fingerprint."""

    def __call__(self, done: float, width: float, /) -> float:
        """The learning rate of the step that has the share `done` of the run behind it and is the
        share `width` of it.

        So of S steps, step s from 0 has done = s/S and width = 1/S.
        """
        ...


@dataclass(frozen=True)
class Constant:
    """Warm-up of W steps, peak * (s+1)/W at step s < W; then `peak`."""

    peak: float
    warmup_steps: int = 0  # optimiser steps

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup_steps, floor=0.0)

    def __call__(self, done: float, width: float, /) -> float:
        return self.peak * _warmth(done, width, self.warmup_steps)


@dataclass(frozen=True)
class Linear:
    """Warm-up as in Constant; then straight from `peak` at step W to `floor` at step S, one after
    the last.
    """

    peak: float
    warmup_steps: int = 0  # optimiser steps
    floor: float = 0.0  # learning rate

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup_steps, self.floor)

    def __call__(self, done: float, width: float, /) -> float:
        left = 1.0 - _decayed(done, width, self.warmup_steps)
        return _between(self.peak, self.floor, left) * _warmth(done, width, self.warmup_steps)


@dataclass(frozen=True)
class Cosine:
    """As Linear, along half a cosine (Loshchilov and Hutter, 2017, arXiv:1608.03983, eq. 5, without
    restarts).
    """

    peak: float
    warmup_steps: int = 0  # optimiser steps
    floor: float = 0.0  # learning rate

    def __post_init__(self) -> None:
        _check(self.peak, self.warmup_steps, self.floor)

    def __call__(self, done: float, width: float, /) -> float:
        left = 0.5 * (1.0 + math.cos(math.pi * _decayed(done, width, self.warmup_steps)))
        return _between(self.peak, self.floor, left) * _warmth(done, width, self.warmup_steps)


ScheduleName = Literal["constant", "linear", "cosine"]
SCHEDULES: Mapping[str, type[Constant] | type[Linear] | type[Cosine]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
}


def make_schedule(name: str, peak: float, warmup_steps: int = 0) -> Schedule:
    """A schedule by name; raises ConfigError for a name that is unknown or numbers that it cannot
    have.
    """
    if name not in SCHEDULES:
        raise ConfigError(f"schedule {name!r} is unknown; {did_you_mean(name, SCHEDULES)}")
    return SCHEDULES[name](peak, warmup_steps)


def _warmth(done: float, width: float, warmup_steps: int) -> float:
    """Share of the peak that warm-up allows: its first step is not 0, so that no step is wasted."""
    return min(1.0, (round(done / width) + 1) / warmup_steps) if warmup_steps else 1.0


def _decayed(done: float, width: float, warmup_steps: int) -> float:
    """Share of the way from the end of warm-up to the end of the run, 0..1."""
    past, whole = round(done / width) - warmup_steps, round(1.0 / width) - warmup_steps
    return min(1.0, past / whole) if past > 0 and whole > 0 else 0.0


def _between(peak: float, floor: float, left: float) -> float:
    return min(peak, max(floor, peak * left + floor * (1.0 - left)))  # exact where left is 0 or 1


def _check(peak: float, warmup_steps: int, floor: float) -> None:
    if not (math.isfinite(peak) and peak > 0):
        raise ConfigError(f"the learning rate {peak} must be above 0")
    if warmup_steps < 0:
        raise ConfigError(f"warmup_steps={warmup_steps} must be 0 or more")
    if not 0 <= floor <= peak:
        raise ConfigError(f"floor={floor} must lie between 0 and the learning rate {peak}")

"""Rules for the time after which a request counts as late, and their texts in settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kitchen.backend.hedging.latencies import WINDOW, Survival
from kitchen.errors import ConfigError, did_you_mean

KINDS = ("percentile:0.95", "fixed:2.0", "adaptive")  # each with an example of its value
TARGET = 0.99  # quantile that `adaptive` makes as low as the budget allows
TOLERANCE = 1.1  # of that quantile, as a factor
BISECTIONS = 30
MAX_SHARE = 1 - 1 / WINDOW  # the largest percentile that can be known from so many answers


@dataclass(frozen=True)
class Lateness:
    """A request is late after `delay` seconds; an extra one then goes out with a probability."""

    delay: float
    probability: float = 1.0


class DelayRule(Protocol):
    """A rule that derives the delay from the latencies so far."""

    @property
    def min_answers(self) -> int:
        """The number of answers without which the rule knows no delay."""

    def lateness(self, survival: Survival, extra: float) -> Lateness:
        """Return when a request is late; `extra` is the share of extra requests allowed."""


@dataclass(frozen=True)
class Fixed:
    """A delay in seconds, whatever the latencies are."""

    seconds: float
    min_answers: int = 0

    def lateness(self, survival: Survival, extra: float) -> Lateness:
        return Lateness(self.seconds)


@dataclass(frozen=True)
class Percentile:
    """A quantile of the latencies; it is known from as many answers as have one beyond it."""

    share: float

    @property
    def min_answers(self) -> int:
        return math.ceil(1 / (1 - self.share) - 1e-9)

    def lateness(self, survival: Survival, extra: float) -> Lateness:
        return Lateness(survival.quantile(self.share))


@dataclass(frozen=True)
class Adaptive:
    """The delay, and the chance of an extra request after it, for a low 99th percentile.

    The policy SingleR of Kaler, He and Elnikety, "Optimal Reissue Policies for Reducing Tail
    Latency" (SPAA 2017): after d seconds, an extra request goes out with probability q. With
    latencies X and Y of the two, the answer takes longer than t with probability
    Pr(X > t) (1 - q Pr(Y <= t - d)), and q Pr(X > d) extra requests are sent. For each d this uses
    the largest q within the budget. Among those whose t at 1 % is at most a tenth above the lowest,
    it takes the d that sends the fewest extra requests, so that the budget is not exhausted by
    requests that are hardly late. X and Y are taken to be independent, with one distribution.
    """

    min_answers: int = math.ceil(1 / (1 - TARGET) - 1e-9)

    def lateness(self, survival: Survival, extra: float) -> Lateness:
        delays = np.append(0.0, survival.times)
        beyond = survival.beyond(delays)
        chances = np.minimum(1.0, extra / np.maximum(beyond, 1e-12))
        low, high = np.zeros(len(delays)), np.full(len(delays), survival.times[-1])
        for _ in range(BISECTIONS):  # for the time t of each delay
            middle = (low + high) / 2
            answered = 1 - survival.beyond(middle - delays)
            is_rare = survival.beyond(middle) * (1 - chances * answered) <= 1 - TARGET + 1e-9
            low, high = np.where(is_rare, low, middle), np.where(is_rare, middle, high)
        extras = np.where(high <= TOLERANCE * high.min(), chances * beyond, np.inf)
        best = int(extras.argmin())
        return Lateness(float(delays[best]), float(chances[best]))


def parse_delay(text: str, setting: str = "hedge") -> DelayRule:
    """Return the rule of `percentile:SHARE`, `fixed:SECONDS` or `adaptive`.

    Raises ConfigError, which names the setting, for a text that is not such a rule.
    """
    kind, colon, value = text.strip().partition(":")
    if kind == "adaptive" and not colon:
        return Adaptive()
    number = _number(value)
    if kind == "percentile" and number is not None and 0 < number <= MAX_SHARE:
        return Percentile(number)
    if kind == "fixed" and number is not None and 0 < number < math.inf:
        return Fixed(number)
    names = {example.partition(":")[0]: example for example in KINDS}
    if kind not in names:
        raise ConfigError(
            f"{setting}={text!r} is unknown; {did_you_mean(kind, names)} Write one of "
            f"{', '.join(KINDS)}, or null for none"
        )
    meaning = {
        "percentile": (
            f"a share above 0 and at most {MAX_SHARE:g} (the latest {WINDOW:,} answers count)"
        ),
        "fixed": "a number of seconds above 0",
    }
    needs = f"needs {meaning[kind]}" if kind in meaning else "takes no value"
    raise ConfigError(f"{setting}={text!r}: {kind} {needs}, as in {names[kind]}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

"""Latencies of requests by their length, where some were cancelled before they were answered."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kitchen.types import Array

WINDOW = 1000  # latest latencies of each length that count
RENEWAL = 0.05  # share of new latencies after which the distribution is computed again


@dataclass(frozen=True)
class Survival:
    """The Kaplan-Meier estimate of the probability that an answer takes longer than a time.

    A request that was cancelled, as another one answered first, is censored: it would have taken
    longer than it did. The estimate is unbiased if the time of cancelling does not depend on the
    latency that it cut off. Source: Kaplan and Meier, "Nonparametric Estimation from Incomplete
    Observations", Journal of the American Statistical Association 53 (1958), 457-481.
    """

    times: Array  # (N,) seconds, ascending
    shares: Array  # (N,) of the requests that take longer than this time

    @classmethod
    def of(cls, times: Any, answered: Any) -> Survival:
        """Estimate from (N,) seconds, and (N,) bools: whether the answer arrived then."""
        times, answered = np.asarray(times, float), np.asarray(answered, bool)
        order = np.lexsort((~answered, times))  # of one time, answers precede cancellations
        at_risk = len(times) - np.arange(len(times))
        return cls(times[order], np.cumprod(np.where(answered[order], 1 - 1 / at_risk, 1.0)))

    def beyond(self, time: Any) -> Any:
        """Return the share of requests that take longer than each time."""
        return np.append(1.0, self.shares)[np.searchsorted(self.times, time, side="right")]

    def quantile(self, share: float) -> float:
        """Return the time within which this share is answered.

        If too many of the longest requests were cancelled, it is only known to lie beyond the
        largest time, which is returned.
        """
        reached = self.shares <= 1 - share + 1e-9
        return float(self.times[reached.argmax() if reached.any() else -1])


@dataclass
class Latencies:
    """The latest latencies of requests of one length, added on any thread."""

    answers: int = 0  # among them
    _latest: deque[tuple[float, bool]] = field(default_factory=deque)
    _new: int = 0  # since the distribution was computed
    _survival: Survival | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, seconds: float, *, answered: bool) -> None:
        """Add a request that was answered, or cancelled, after some seconds."""
        with self._lock:
            if len(self._latest) == WINDOW:
                self.answers -= self._latest.popleft()[1]
            self._latest.append((seconds, answered))
            self.answers += answered
            self._new += 1

    def survival(self) -> tuple[Survival, bool]:
        """Return the distribution, and whether it has changed since the last call."""
        with self._lock:
            is_new = self._survival is None or self._new > RENEWAL * len(self._latest)
            if self._survival is None or is_new:
                times, answered = zip(*self._latest, strict=True) if self._latest else ((), ())
                self._survival = Survival.of(times, answered)
                self._new = 0
            return self._survival, is_new

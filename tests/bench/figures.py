"""Medians and spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Figure:
    """The median of some measurements, with the quartiles around it."""

    median: float
    low: float  # a quarter of the measurements lie below
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Figure:
        low, middle, high = np.quantile(np.asarray(numbers, np.float64), [0.25, 0.5, 0.75])
        return cls(float(middle), float(low), float(high))

    def shown(self, digits: int = 2) -> str:
        return f"{self.median:,.{digits}f} [{self.low:,.{digits}f}–{self.high:,.{digits}f}]"

    def record(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Ratio:
    """The ratio of two series: of their medians, with the spread over the pairs."""

    of_medians: float
    pairs: Figure

    @classmethod
    def of(cls, upper: Sequence[float], lower: Sequence[float]) -> Ratio:
        pairs = Figure.of([above / below for above, below in zip(upper, lower, strict=True)])
        return cls(Figure.of(upper).median / Figure.of(lower).median, pairs)

    def shown(self) -> str:
        return f"{self.of_medians:.2f} (pairs {self.pairs.shown()})"

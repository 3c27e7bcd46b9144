"""Medians and ratios with their quartiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Quartiles:
    """The median and the quartiles of some measurements."""

    median: float
    low: float  # the 0.25 quantile
    high: float  # the 0.75 quantile

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Quartiles:
        low, middle, high = np.quantile(np.asarray(numbers, np.float64), [0.25, 0.5, 0.75])
        return cls(float(middle), float(low), float(high))

    def format(self, digits: int = 2) -> str:
        return f"{self.median:,.{digits}f} [{self.low:,.{digits}f}–{self.high:,.{digits}f}]"

    def record(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Ratio:
    """The ratio of two medians, with the quartiles of the ratios of pairs."""

    of_medians: float
    pairs: Quartiles

    @classmethod
    def of(cls, numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
        ratios = [above / below for above, below in zip(numerators, denominators, strict=True)]
        median_ratio = Quartiles.of(numerators).median / Quartiles.of(denominators).median
        return cls(median_ratio, Quartiles.of(ratios))

    def format(self) -> str:
        return f"{self.of_medians:.2f} (pairs {self.pairs.format()})"

"""Comparison of the levels of a factor: groups of runs with one value of each measure per run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kitchen.errors import DataError
from kitchen.statistics.corrections import Correction, correct
from kitchen.statistics.effects import cliffs_delta, epsilon_squared
from kitchen.statistics.groups import (
    dunn,
    kruskal_exact,
    kruskal_power,
    smallest_kruskal,
    sums_of_squares,
)
from kitchen.statistics.intervals import Interval, mean_interval, welch_interval
from kitchen.statistics.power import ALPHA, POWER
from kitchen.statistics.samples import Scores, checked
from kitchen.statistics.significance import SignificanceResult
from kitchen.types import Array

_SEPARATED = 32.0  # standard deviations, by which no two runs of different levels overlap
_HALVINGS = 12  # of that, to find the smallest difference that is shown


@dataclass(frozen=True)
class LevelPair:
    """Two levels, compared on one measure; the difference is second - first."""

    first: str
    second: str
    difference: Interval  # of the means (Welch)
    effect: Interval  # Cliff's delta
    test: SignificanceResult  # Dunn
    p_corrected: float  # for the pairs of the measure


@dataclass(frozen=True)
class LevelComparison:
    """All levels, compared on one measure."""

    measure: str
    values: Mapping[str, tuple[float, ...]]  # of the runs, by level
    means: Mapping[str, Interval]  # by level
    test: SignificanceResult  # Kruskal-Wallis
    p_corrected: float  # for all measures
    smallest_p: float  # the smallest corrected p-value that this number of runs can have
    effect: Interval | None  # epsilon squared; None if all values are equal
    pairs: tuple[LevelPair, ...]
    # smallest difference of the lowest and highest mean, with the others halfway between, that the
    # test shows with a power of 0.8; None if nothing varies, infinite if no difference is
    detectable: float | None
    alpha: float

    @property
    def differs(self) -> bool:
        """True if at least two levels differ."""
        return self.p_corrected <= self.alpha

    @property
    def different_pairs(self) -> Sequence[LevelPair]:
        """The pairs that differ; none unless the test of all levels finds a difference."""
        return [pair for pair in self.pairs if self.differs and pair.p_corrected <= self.alpha]


def compare_levels(
    measures: Mapping[str, Mapping[str, Scores]],
    *,
    correction: Correction = "holm",
    alpha: float = ALPHA,
    confidence: float = 0.95,
) -> tuple[LevelComparison, ...]:
    """Compare two or more levels on each measure, given the values of the runs by level.

    Kruskal and Wallis's test asks whether any levels differ; its p-values are corrected for the
    measures. Dunn's test of each pair of levels is corrected for the pairs. Raises DataError for a
    measure of fewer than two levels.
    """
    if not measures:
        return ()
    count = 1 if correction in ("none", "bh") else len(measures)
    significant = alpha / count  # for the smallest p-value, in the first step of Holm's method
    compared = [
        _compare(name, levels, confidence, alpha, significant) for name, levels in measures.items()
    ]
    corrected = correct([each.test.p_value for each in compared], correction)
    return tuple(
        replace(each, p_corrected=float(p), smallest_p=min(1.0, count * each.smallest_p))
        for each, p in zip(compared, corrected, strict=True)
    )


def _compare(
    measure: str,
    levels: Mapping[str, Scores],
    confidence: float,
    alpha: float,
    significant: float,
) -> LevelComparison:
    arrays = {name: checked(values, f"{measure}, {name}") for name, values in levels.items()}
    groups = list(arrays.values())
    if len(groups) < 2:
        raise DataError(f"{measure}: a comparison needs two or more levels, and got {len(groups)}")
    test = kruskal_exact(groups)
    return LevelComparison(
        measure,
        {name: tuple(array.tolist()) for name, array in arrays.items()},
        {name: _mean(array, confidence) for name, array in arrays.items()},
        test,
        test.p_value,
        smallest_kruskal([len(group) for group in groups]),
        None if test.statistic is None else epsilon_squared(groups, confidence),
        _pairs(arrays, confidence),
        _detectable(groups, significant),
        alpha,
    )


def _mean(array: Array, confidence: float) -> Interval:
    if len(array) < 2:
        value = float(array[0])
        return Interval(value, -math.inf, math.inf, confidence, "t", 1, "there is one run")
    return mean_interval(array, confidence)


def _pairs(arrays: Mapping[str, Array], confidence: float) -> tuple[LevelPair, ...]:
    names, groups = list(arrays), list(arrays.values())
    tests = dunn(groups)
    corrected = correct([test.p_value for test in tests.values()])
    return tuple(
        LevelPair(
            names[i],
            names[j],
            welch_interval(groups[i], groups[j], confidence),
            cliffs_delta(groups[i], groups[j], confidence),
            test,
            float(p),
        )
        for ((i, j), test), p in zip(tests.items(), corrected, strict=True)
    )


def _detectable(groups: Sequence[Array], alpha: float) -> float | None:
    """Return the smallest difference of the lowest and highest mean that the test shows.

    The means of other levels lie halfway between. The noise is normal, with the variance within
    levels. None if nothing varies; infinite if no difference has the power.
    """
    _, within, (_, df) = sums_of_squares(groups)
    if within <= 0 or df <= 0:
        return None
    sizes = sorted(map(len, groups))  # the lowest and highest level have the fewest runs

    def is_shown(difference: float) -> bool:
        means = (0.0, difference, *[difference / 2] * (len(sizes) - 2))
        return kruskal_power(means, sizes, alpha) >= POWER

    if not is_shown(_SEPARATED):
        return math.inf
    least, most = 0.0, _SEPARATED
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        least, most = (least, middle) if is_shown(middle) else (middle, most)
    return most * math.sqrt(within / df)

"""Comparison of the levels of a factor: groups of runs with one value of each measure per run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kitchen.errors import DataError
from kitchen.statistics.corrections import Correction, correct
from kitchen.statistics.effects import cliffs_delta, epsilon_squared
from kitchen.statistics.groups import dunn, kruskal_exact, smallest_kruskal, sums_of_squares
from kitchen.statistics.intervals import Interval, mean_interval, welch_interval
from kitchen.statistics.power import ALPHA, POWER, t_detectable
from kitchen.statistics.samples import Scores, checked
from kitchen.statistics.significance import SignificanceResult
from kitchen.types import Array


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
    # smallest difference of two means that is shown with a power of 0.8; None if nothing varies
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
    compared = [_compare(name, levels, confidence, alpha) for name, levels in measures.items()]
    corrected = correct([each.test.p_value for each in compared], correction)
    count = 1 if correction in ("none", "bh") else len(compared)
    return tuple(
        replace(each, p_corrected=float(p), smallest_p=min(1.0, count * each.smallest_p))
        for each, p in zip(compared, corrected, strict=True)
    )


def _compare(
    measure: str, levels: Mapping[str, Scores], confidence: float, alpha: float
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
        _detectable(groups, alpha),
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
    """Return the smallest difference of two means that a t test shows, as one of all pairs.

    The noise is the pooled standard deviation within levels, assumed to be equal. Bonferroni's
    correction equals the first step of Holm's.
    """
    _, within, (_, df) = sums_of_squares(groups)
    pairs = len(groups) * (len(groups) - 1) / 2
    if within <= 0 or df <= 0:
        return None
    error = math.sqrt(2 * within / df / min(map(len, groups)))
    return t_detectable(error, df, power=POWER, alpha=alpha / pairs)

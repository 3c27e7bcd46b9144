"""Comparison of groups of runs that differ in their seed, over the same items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kitchen.errors import DataError
from kitchen.statistics.intervals import Interval, welch_interval
from kitchen.statistics.samples import (
    Scores,
    check_probability,
    checked_matrix,
    is_constant,
)
from kitchen.statistics.significance import SignificanceResult, welch
from kitchen.types import Array


@dataclass(frozen=True)
class SeedComparison:
    """A difference of two groups of seeds, with items and seeds crossed, and by seeds alone."""

    crossed: Interval
    crossed_test: SignificanceResult
    by_seeds: Interval
    by_seeds_test: SignificanceResult


def compare_seed_groups(
    first: Sequence[Scores] | Array,
    second: Sequence[Scores] | Array,
    confidence: float = 0.95,
) -> SeedComparison:
    """Compare two (seeds, n) arrays of scores of the same items; the difference is second - first.

    By seeds alone, each seed counts as one number, and Welch's t interval is reported: it
    generalises to other seeds on the same items. Crossed, items and seeds are both random: see
    `crossed_error`. Raises DataError for fewer than two seeds in a group.
    """
    one = checked_matrix(first, "seed of the first group")
    other = checked_matrix(second, "seed of the second group")
    if one.shape[1] != other.shape[1]:
        raise DataError(
            f"the first group has {one.shape[1]} items and the second {other.shape[1]}; groups of "
            "seeds need the same items"
        )
    means = one.mean(axis=1), other.mean(axis=1)
    by_seeds = welch_interval(*means, confidence)
    crossed, crossed_test = _crossed(one, other, confidence)
    return SeedComparison(crossed, crossed_test, by_seeds, welch(*means))


def crossed_error(first: Array, second: Array) -> tuple[float, float]:
    """Return the standard error of a difference over random items and seeds, and its df.

    The variance is that of items plus those of the seeds of each group, minus the noise that both
    contain (Cameron, Gelbach and Miller, 2011, doi:10.1198/jbes.2010.07136). The degrees of
    freedom are Satterthwaite's (1946, doi:10.2307/3002019). They are 0 where nothing varies.
    """
    n = first.shape[1]
    terms = [(_variance(second.mean(axis=0) - first.mean(axis=0)) / n, n - 1.0)]
    noise = 0.0
    for group in (first, second):
        seeds = len(group)
        terms.append((_variance(group.mean(axis=1)) / seeds, seeds - 1.0))
        if n > 1:
            residual = group - group.mean(axis=0) - group.mean(axis=1, keepdims=True) + group.mean()
            noise += float((residual**2).sum()) / ((seeds - 1) * (n - 1)) / (seeds * n)
    parts = [term for term, _ in terms]
    variance = max(sum(parts) - noise, *parts)
    if variance <= 1e-30:
        return 0.0, 0.0
    df = variance**2 / sum(term**2 / max(of_term, 1.0) for term, of_term in terms)
    return math.sqrt(variance), df


def _crossed(one: Array, other: Array, confidence: float) -> tuple[Interval, SignificanceResult]:
    from scipy.special import stdtr, stdtrit

    estimate, n = float(other.mean() - one.mean()), one.shape[1]
    error, df = crossed_error(one, other)
    method = "items and seeds crossed, t"
    if df == 0:
        why = "neither items nor seeds vary: there is no estimate of the noise"
        found = Interval(estimate, -math.inf, math.inf, confidence, method, n, why)
        return found, SignificanceResult(1.0, method, n, why=why)
    t = estimate / error
    half = error * float(stdtrit(df, 0.5 + check_probability("confidence", confidence) / 2))
    test = SignificanceResult(2 * float(stdtr(df, -abs(t))), method, n, t, (df,))
    return Interval(estimate, estimate - half, estimate + half, confidence, method, n), test


def _variance(values: Array) -> float:
    return 0.0 if len(values) < 2 or is_constant(values) else float(values.var(ddof=1))

"""Power of tests: how many items are needed, and which difference a number of items can show."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kitchen.errors import ConfigError
from kitchen.statistics.samples import check_probability

POWER = 0.8
ALPHA = 0.05
MOST_ITEMS = 1_000_000


def t_power(
    n: float, difference: float, sd: float, *, paired: bool = True, alpha: float = ALPHA
) -> float:
    """Return the power of a two-sided t test, from the noncentral t distribution.

    `n` is the number of items, or for different items the number in each array; `sd` the standard
    deviation of the differences, or of the scores. Both tails count, as in R's `strict=TRUE`.
    """
    _check_above_0(sd=sd)
    if n < 2:
        return 0.0
    shift = abs(difference) / sd * math.sqrt(n if paired else n / 2)
    return _power_of_shift(n - 1 if paired else 2 * (n - 1), shift, alpha)


def _power_of_shift(df: float, shift: float, alpha: float) -> float:
    """Return the power of a t test at a noncentrality: the difference in standard errors."""
    from scipy.special import stdtrit

    check_probability("alpha", alpha)
    critical = float(stdtrit(df, 1 - alpha / 2))
    power = 1 - noncentral_t(df, shift, critical) + noncentral_t(df, shift, -critical)
    return min(max(power, 0.0), 1.0)


def noncentral_t(df: float, shift: float, t: float) -> float:
    """Return the probability that noncentral t is at most `t`.

    SciPy returns NaN for some arguments far in the tails, where it is 0 or 1 up to rounding.
    """
    from scipy.special import nctdtr

    probability = float(nctdtr(df, shift, t))
    return probability if math.isfinite(probability) else float(shift < t)


def t_items_needed(
    difference: float,
    sd: float,
    *,
    power: float = POWER,
    paired: bool = True,
    alpha: float = ALPHA,
) -> float:
    """Return the n of `t_power` that has a power, as a number that is not rounded."""
    check_probability("power", power)
    _check_above_0(difference=abs(difference), sd=sd)

    def missing(n: float) -> float:
        return t_power(n, difference, sd, paired=paired, alpha=alpha) - power

    return 2.0 if missing(2) >= 0 else _root(missing, 2.0, float(MOST_ITEMS))


def t_detectable(
    error: float, df: float, *, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """Return the smallest difference that a t test shows with a power.

    `error` is the standard error of the difference. None where it cannot be estimated.
    """
    check_probability("power", power)
    if error <= 0 or df <= 0:
        return None

    def missing(shift: float) -> float:
        return _power_of_shift(df, shift, alpha) - power

    most = 4.0
    while missing(most) < 0:
        most *= 2
    return error * _root(missing, 0.0, most)


def mcnemar_power(n: int, only_first: float, only_second: float, alpha: float = ALPHA) -> float:
    """Return the exact power of McNemar's exact test.

    `only_first` and `only_second` are the probabilities that an item is right in one alone.
    """
    from scipy.special import bdtr, bdtrik, gammaln, xlogy

    check_probability("alpha", alpha)
    differ = only_first + only_second
    if min(only_first, only_second) < 0 or differ > 1 + 1e-12:
        raise ConfigError(
            f"only_first={only_first} and only_second={only_second} must be probabilities with a "
            "sum of at most 1"
        )
    if differ <= 0 or n < 1:
        return 0.0
    differ = min(differ, 1.0)
    spread = 10 * math.sqrt(n * differ * (1 - differ)) + 10  # more is less probable than 1e-15
    least, most = max(1, int(n * differ - spread)), min(n, int(n * differ + spread) + 1)
    m = np.arange(least, most + 1)  # items that differ
    logs = gammaln(n + 1) - gammaln(m + 1) - gammaln(n - m + 1)
    weights = np.exp(logs + xlogy(m, differ) + xlogy(n - m, 1 - differ))
    # the most items in the smaller cell with which the test rejects
    critical = np.floor(np.nan_to_num(bdtrik(alpha / 2, m, 0.5), nan=-1.0)) + 1
    for _ in range(3):
        critical -= bdtr(np.maximum(critical, 0), m, 0.5) > alpha / 2
    rejects = critical >= 0
    share = only_second / differ
    at = np.maximum(critical, 0)
    chance = bdtr(at, m, share) + bdtr(at, m, 1 - share)
    return float(min((weights * np.where(rejects, chance, 0.0)).sum(), 1.0))


def mcnemar_detectable(
    n: int, differ: float, *, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """Return the smallest difference of shares that n items show with a power.

    `differ` is the share of items on which the two differ; it is raised where even all of them in
    one direction are not enough. None if n is too small for any difference.
    """
    check_probability("power", power)

    def missing(difference: float) -> float:
        total = max(differ, difference)
        first, second = (total - difference) / 2, (total + difference) / 2
        return mcnemar_power(n, first, second, alpha) - power

    return None if missing(1.0) < 0 else _root(missing, 0.0, 1.0)


def shares_power(
    n_first: int, n_second: int, first: float, second: float, alpha: float = ALPHA
) -> float:
    """Return the power of Fisher's exact test, by the normal approximation with a continuity term.

    Fleiss, Tytun and Ury, 1980, doi:10.2307/2529990. `first` and `second` are the true shares.
    """
    from scipy.special import ndtr, ndtri

    check_probability("alpha", alpha)
    _check_shares(first=first, second=second)
    if min(n_first, n_second) < 1:
        return 0.0
    inverse = 1 / n_first + 1 / n_second
    pooled = (n_first * first + n_second * second) / (n_first + n_second)
    needed = float(ndtri(1 - alpha / 2)) * math.sqrt(pooled * (1 - pooled) * inverse)
    noise = math.sqrt(first * (1 - first) / n_first + second * (1 - second) / n_second)
    surplus = abs(second - first) - inverse / 2 - needed
    return float(ndtr(surplus / noise)) if noise > 0 else float(surplus > 0)


def shares_detectable(
    n_first: int, n_second: int, first: float, *, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """Return the smallest difference from a share that Fisher's test shows with a power.

    It is that in the direction with more room. None if n is too small for any.
    """
    check_probability("power", power)
    room = max(first, 1 - first)
    sign = 1 if first <= 0.5 else -1

    def missing(difference: float) -> float:
        second = min(max(first + sign * difference, 0.0), 1.0)
        return shares_power(n_first, n_second, first, second, alpha) - power

    return None if missing(room) < 0 else _root(missing, 0.0, room)


def share_items_needed(
    baseline: float,
    difference: float,
    *,
    differ: float | None = None,
    paired: bool = True,
    power: float = POWER,
    alpha: float = ALPHA,
) -> int:
    """Return how many items show that a share differs from a baseline.

    `differ` is the share of items on which the two evaluations differ, by default that of
    independent answers; answers of related models agree more often, and need fewer items.
    Different items (`paired=False`) need this number in each evaluation.
    """
    check_probability("power", power)
    second = baseline + difference
    _check_shares(baseline=baseline, **{"baseline + difference": second})
    if difference == 0:
        raise ConfigError("difference=0 cannot be shown by any number of items")
    _check_plan(baseline, difference, differ, paired)
    if differ is None:
        differ = baseline * (1 - second) + second * (1 - baseline)
    differ = max(differ, abs(difference))  # up to rounding, it is at least that

    def has_power(n: int) -> bool:
        if not paired:
            return shares_power(n, n, baseline, second, alpha) >= power
        first, other = (differ - difference) / 2, (differ + difference) / 2
        return mcnemar_power(n, first, other, alpha) >= power

    return _smallest(has_power)


@dataclass(frozen=True)
class EvaluationPlan:
    """The items, baseline share and difference of an evaluation that reaches a power."""

    n: int | None  # items, or for different items the number in each evaluation
    baseline: float | None  # share of the first evaluation; None if no baseline will do
    difference: float | None  # None if n is too small for any
    power: float
    alpha: float
    paired: bool
    computed: Literal["n", "baseline", "difference", "power"]
    differ: float | None = None  # share of items on which the two differ; None if independent


def plan_evaluation(
    *,
    n: int | None = None,
    baseline: float | None = None,
    difference: float | None = None,
    differ: float | None = None,
    paired: bool = True,
    power: float = POWER,
    alpha: float = ALPHA,
) -> EvaluationPlan:
    """Compute the one of n, baseline and difference that is left out; with all three, the power.

    A computed baseline is the highest below 0.5 at which n items show the difference: they show it
    at all lower ones too, and at those as close to 1. `differ` is that of `share_items_needed`.
    Raises ConfigError for numbers that contradict each other.
    """
    given = {"n": n, "baseline": baseline, "difference": difference}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) > 1:
        raise ConfigError(f"{' and '.join(missing)} are left out: only one of them is computed")
    if n is not None and not 1 <= n <= MOST_ITEMS:
        raise ConfigError(f"n={n:,} must lie between 1 and {MOST_ITEMS:,}")
    check_probability("power", power)
    _check_plan(baseline, difference, differ, paired)
    found = EvaluationPlan(n, baseline, difference, power, alpha, paired, "power", differ)
    if n is None:
        assert baseline is not None
        assert difference is not None
        needed = share_items_needed(
            baseline, difference, differ=differ, paired=paired, power=power, alpha=alpha
        )
        return replace(found, n=needed, computed="n")
    if difference is None:
        assert baseline is not None
        gain = _detectable_gain(found, n, baseline)
        return replace(found, difference=gain, computed="difference")
    if baseline is None:
        highest = _highest_baseline(found, n, difference)
        return replace(found, baseline=highest, computed="baseline")
    return replace(found, power=_plan_power(found, n, baseline, difference))


def _check_plan(
    baseline: float | None, difference: float | None, differ: float | None, paired: bool
) -> None:
    """Raise ConfigError for a difference, or a share of items that differ, that cannot be."""
    if baseline is not None:
        _check_shares(baseline=baseline, **{"baseline + difference": baseline + (difference or 0)})
    if difference is not None and not -1 <= difference <= 1:
        raise ConfigError(f"difference={difference:g} must lie between -1 and 1")
    if differ is None:
        return
    if not paired:
        raise ConfigError(
            f"differ={differ:g} is a share of the same items: leave it out for different items "
            "(--unpaired, paired=False)"
        )
    least, most = abs(difference or 0.0), 1.0
    if baseline is not None:  # both are right on most items, or both wrong
        both = 2 * baseline + (difference or 0.0)
        most = 2 - both if difference is None else min(both, 2 - both)
    if not least - 1e-9 <= differ <= min(most, 1.0) + 1e-9:
        given = {"baseline": baseline, "difference": difference}
        known = [f"{name}={value:g}" for name, value in given.items() if value is not None]
        raise ConfigError(
            f"differ={differ:g} must lie between {least:g} and {min(most, 1.0):g} with "
            f"{' and '.join(known)}"
        )


def _plan_power(plan: EvaluationPlan, n: int, baseline: float, difference: float) -> float:
    second = baseline + difference
    _check_shares(baseline=baseline, **{"baseline + difference": second})
    if not plan.paired:
        return shares_power(n, n, baseline, second, plan.alpha)
    differ = plan.differ
    if differ is None:
        differ = baseline * (1 - second) + second * (1 - baseline)
    differ = max(differ, abs(difference))  # up to rounding, it is at least that
    return mcnemar_power(n, (differ - difference) / 2, (differ + difference) / 2, plan.alpha)


def _detectable_gain(plan: EvaluationPlan, n: int, baseline: float) -> float | None:
    """Return the smallest gain over a baseline that n items show; None if they show none."""
    least, most = 0.0, 1 - baseline
    if plan.differ is not None:  # each item on which they differ is right in one of the two
        least = max(0.0, plan.differ - 2 * baseline)
        most = min(most, plan.differ, 2 * most - plan.differ)

    def missing(difference: float) -> float:
        return _plan_power(plan, n, baseline, min(difference, most)) - plan.power

    return None if missing(most) < 0 else _root(missing, least, most)


def _highest_baseline(plan: EvaluationPlan, n: int, difference: float) -> float | None:
    """Return the highest baseline below 0.5 at which n items show a difference; None if none."""
    least, most = max(0.0, -difference), (1 - difference) / 2

    def surplus(baseline: float) -> float:
        return plan.power - _plan_power(plan, n, baseline, difference)

    if surplus(least) > 0:
        return None
    return most if surplus(most) <= 0 else _root(surplus, least, most)


def _smallest(holds: Callable[[int], bool]) -> int:
    """Return a number of items for which a condition holds, and does not for one fewer."""
    most = 2
    while not holds(most):
        most *= 2
        if most > MOST_ITEMS:
            raise ConfigError(f"more than {MOST_ITEMS:,} items are needed: raise the difference")
    least = 0
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if holds(middle) else (middle, most)
    return most


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    if function(low) >= 0:
        return low
    if function(high) < 0:
        raise ConfigError(f"more than {MOST_ITEMS:,} items are needed: raise the difference")
    return float(brentq(function, low, high, xtol=1e-12, rtol=1e-12))


def _check_above_0(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name}={value} must be a number above 0")


def _check_shares(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name}={value:g} must lie between 0 and 1")

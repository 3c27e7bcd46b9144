"""Confidence intervals of shares, means, ratios and differences, and pass@k."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from kitchen.errors import DataError
from kitchen.statistics.resampling import RESAMPLES, SEED, resampled
from kitchen.statistics.samples import (
    SHARE,
    UNBOUNDED,
    Bounds,
    Clusters,
    Ratio,
    Scores,
    check_probability,
    checked,
    checked_pair,
    count,
    is_binary,
    is_constant,
    is_share,
)
from kitchen.types import Array

BOOTSTRAP_FROM = 20  # units; below, Student's t


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval.

    If the data says nothing about the uncertainty, `low` and `high` are infinite.
    """

    estimate: float
    low: float
    high: float
    confidence: float  # 0..1
    method: str = ""
    n: int = 0  # number of items
    why: str = ""  # one sentence, where the method was chosen

    @property
    def known(self) -> bool:
        """True if the data says anything about the uncertainty of the estimate."""
        return math.isfinite(self.low) or math.isfinite(self.high)

    def format(self, digits: int = 3, *, sign: bool = False) -> str:
        """Return `estimate [low, high]`; with a sign for a difference."""
        spec = f"{'+' * sign}.{digits}f"
        if not self.known:
            return f"{self.estimate:{spec}} [no interval]"
        text = f"{self.estimate:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"
        return text.replace("inf", "∞")


def wilson(successes: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the score interval of a share (Wilson, 1927, doi:10.2307/2276774).

    Raises DataError for counts that do not form a share.
    """
    _check_share(successes, n)
    z2 = NormalDist().inv_cdf(0.5 + check_probability("confidence", confidence) / 2) ** 2
    share = successes / n
    middle = share + z2 / (2 * n)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n)
    low = (middle - half) / (1 + z2 / n)
    high = (middle + half) / (1 + z2 / n)
    return (0.0 if successes == 0 else low), (1.0 if successes == n else high)


def clopper_pearson(successes: float, n: float, confidence: float = 0.95) -> Interval:
    """Return the exact interval of a share (Clopper and Pearson, 1934, doi:10.2307/2331986).

    It contains the true share at least as often as `confidence` says, at every share and n. Raises
    DataError for counts that do not form a share.
    """
    from scipy.special import betaincinv

    _check_share(successes, n)
    tail = (1 - check_probability("confidence", confidence)) / 2
    failures = n - successes
    low = 0.0 if successes == 0 else float(betaincinv(successes, failures + 1, tail))
    high = 1.0 if failures == 0 else float(betaincinv(successes + 1, failures, 1 - tail))
    return Interval(successes / n, low, high, confidence, "Clopper-Pearson", round(n))


def korn_graubard(values: Scores, clusters: Clusters, confidence: float = 0.95) -> Interval:
    """Return the interval of a share of clustered items, exact for the effective n.

    Korn and Graubard, 1998, Survey Methodology 24:193-201: Clopper and Pearson's interval, with n
    divided by the design effect, and corrected for the degrees of freedom of the clusters.
    """
    scores = checked(values, bounds=SHARE)
    ratio = Ratio.of(scores).grouped(clusters)
    effective = _effective_n(scores, ratio, confidence)
    found = clopper_pearson(ratio.estimate * effective, effective, confidence)
    why = f"the items come in {count(ratio.units, 'cluster')}: they are worth {effective:.1f} items"
    return replace(found, method="Korn-Graubard", n=len(scores), why=why)


def _effective_n(scores: Array, ratio: Ratio, confidence: float) -> float:
    """Return the number of independent items that clustered 0/1 scores are worth."""
    from scipy.special import stdtrit

    share, n, clusters = ratio.estimate, len(scores), ratio.units
    variance = standard_error(ratio) ** 2
    if clusters < 2 or variance <= 1e-24:  # nothing is known about the scores within clusters
        return float(clusters)
    probability = 0.5 + check_probability("confidence", confidence) / 2
    t_ratio = stdtrit(n - 1, probability) / stdtrit(clusters - 1, probability)
    effective = share * (1 - share) / variance * float(t_ratio) ** 2
    return min(max(effective, 1.0), float(n))


def newcombe_paired(first: Scores, second: Scores, confidence: float = 0.95) -> Interval:
    """Return the interval of the difference of two shares of the same items.

    Newcombe, 1998, doi:10.1002/(SICI)1097-0258(19981130)17:22<2635::AID-SIM954>3.0.CO;2-C, method
    10: score intervals combined with the correlation. Scores are 0 or 1; it is second minus first.
    """
    one, other = checked_pair(first, second, bounds=SHARE)
    _check_binary(one, other)
    n = len(one)
    both, only_first = float((one * other).sum()), float((one * (1 - other)).sum())
    only_second = float((other * (1 - one)).sum())
    neither = n - both - only_first - only_second
    phi = _newcombe_correlation(both, only_first, only_second, neither)
    difference = (only_second - only_first) / n
    share_one, share_other = (both + only_first) / n, (both + only_second) / n
    low_one, high_one = wilson(both + only_first, n, confidence)
    low_other, high_other = wilson(both + only_second, n, confidence)
    low = _combined(share_other - low_other, high_one - share_one, phi)
    high = _combined(high_other - share_other, share_one - low_one, phi)
    return Interval(
        difference, difference - low, difference + high, confidence, "Newcombe, paired", n
    )


def _newcombe_correlation(both: float, first: float, second: float, neither: float) -> float:
    """Return phi of a 2 x 2 table with Newcombe's continuity correction; 0 for an empty margin."""
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    if margins == 0:
        return 0.0
    cross = both * neither - first * second
    if cross > 0:
        cross = max(cross - (both + first + second + neither) / 2, 0.0)
    return cross / math.sqrt(margins)


def _combined(one: float, other: float, correlation: float = 0.0) -> float:
    return math.sqrt(max(one**2 - 2 * correlation * one * other + other**2, 0.0))


def newcombe_unpaired(first: Scores, second: Scores, confidence: float = 0.95) -> Interval:
    """Return the interval of the difference of two shares of different items.

    Newcombe, 1998, doi:10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I, method 10.
    """
    one, other = checked(first, bounds=SHARE), checked(second, bounds=SHARE)
    _check_binary(one, other)
    share_one, share_other = float(one.mean()), float(other.mean())
    low_one, high_one = wilson(float(one.sum()), len(one), confidence)
    low_other, high_other = wilson(float(other.sum()), len(other), confidence)
    difference = share_other - share_one
    low = difference - _combined(share_other - low_other, high_one - share_one)
    high = difference + _combined(high_other - share_other, share_one - low_one)
    return Interval(difference, low, high, confidence, "Newcombe", len(one) + len(other))


def student_t(ratio: Ratio, confidence: float = 0.95) -> Interval:
    """Return Student's t interval of a mean, or of a ratio by linearisation.

    Student, 1908, doi:10.2307/2331554. Raises DataError for fewer than two units.
    """
    from scipy.special import stdtrit

    if ratio.units < 2:
        raise DataError("the interval of a mean needs at least two values, and there is one")
    probability = 0.5 + check_probability("confidence", confidence) / 2
    half = float(stdtrit(ratio.units - 1, probability)) * standard_error(ratio)
    estimate = ratio.estimate
    return Interval(estimate, estimate - half, estimate + half, confidence, "t", ratio.items)


def mean_interval(
    values: Scores, confidence: float = 0.95, *, bounds: Bounds = UNBOUNDED
) -> Interval:
    """Return Student's t interval of the mean of independent values, such as one per seed.

    It ends at the bounds of the measure, and is unknown if all values are equal. Raises DataError
    for fewer than two values.
    """
    found = student_t(Ratio.of(values, bounds=bounds), confidence)
    if is_constant(np.asarray(values, np.float64)):
        return replace(found, low=-math.inf, high=math.inf, why="all values are equal")
    return replace(found, low=max(found.low, bounds[0]), high=min(found.high, bounds[1]))


def standard_error(ratio: Ratio) -> float:
    """Return the standard error of a mean, or of a ratio by linearisation; 0 for one unit."""
    if ratio.units < 2:
        return 0.0
    values = ratio.pseudo_values()
    return 0.0 if is_constant(values) else float(values.std(ddof=1)) / math.sqrt(ratio.units)


def bca_bootstrap(
    ratio: Ratio, confidence: float = 0.95, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval:
    """Return the bias-corrected and accelerated bootstrap interval (BCa), units resampled.

    Efron, 1987, doi:10.2307/2289144. The quantiles are those of Student's t, and not normal, and
    widened by sqrt(n / (n - 1)): without this the interval is too narrow for small n (Hesterberg,
    2015, doi:10.1080/00031305.2015.1089789).
    """
    from scipy.special import ndtr, ndtri, stdtrit

    n, estimate = ratio.units, ratio.estimate
    deviations = ratio.pseudo_values() - estimate
    if n < 2 or is_constant(deviations):
        raise DataError("a bootstrap needs at least two values that differ")
    values = resampled(ratio, resamples, seed)
    tolerance = 1e-12 * max(1.0, abs(estimate))
    below = (values < estimate - tolerance).mean() + (
        abs(values - estimate) <= tolerance
    ).mean() / 2
    bias = float(ndtri(np.clip(below, 1 / resamples, 1 - 1 / resamples)))
    acceleration = float((deviations**3).sum() / (6 * (deviations**2).sum() ** 1.5))
    probability = 0.5 + check_probability("confidence", confidence) / 2
    z = math.sqrt(n / (n - 1)) * float(stdtrit(n - 1, probability))
    shifted = bias + np.array([-z, z])
    # the map from quantiles to quantiles decreases beyond this pole, far in the tails
    scale = np.maximum(1 - acceleration * shifted, 1e-9)
    low, high = np.quantile(values, ndtr(bias + shifted / scale)).tolist()
    low, high = min(low, estimate), max(high, estimate)
    return Interval(estimate, low, high, confidence, "BCa bootstrap", ratio.items)


def interval(
    values: Scores,
    sizes: Scores | None = None,
    *,
    clusters: Clusters | None = None,
    bounds: Bounds = SHARE,
    confidence: float = 0.95,
) -> Interval:
    """Return the default interval of a mean of (n,) scores, or with sizes of a ratio of sums.

    Scores of 0 and 1 have an exact interval of a share, others a bootstrap or, for fewer than 20
    items or clusters, Student's t. `bounds` is the range of the measure. Raises DataError for
    scores that are missing, not finite or out of bounds.
    """
    ratio = Ratio.of(values, sizes, bounds=bounds)
    scores = ratio.columns[:, 0]
    if sizes is None and is_share(bounds, scores):
        if clusters is not None:
            return korn_graubard(scores, clusters, confidence)
        found = clopper_pearson(float(scores.sum()), len(scores), confidence)
        return replace(found, why="all scores are 0 or 1")
    return ratio_interval(ratio, clusters, bounds, confidence)


def paired_interval(
    first: Scores,
    second: Scores,
    sizes: Scores | None = None,
    *,
    bounds: Bounds = SHARE,
    confidence: float = 0.95,
) -> Interval:
    """Return the default interval of second minus first, for scores of the same items.

    Scores of 0 and 1 have Newcombe's interval, others those of `ratio_interval`.
    """
    one, other = checked_pair(first, second, bounds=bounds)
    if sizes is None and is_share(bounds, one, other):
        return newcombe_paired(one, other, confidence)
    ratio = Ratio.difference(one, other, sizes)
    return ratio_interval(ratio, None, difference_bounds(bounds), confidence)


def difference_bounds(bounds: Bounds) -> Bounds:
    """Return the range of a difference of two numbers within bounds."""
    return bounds[0] - bounds[1], bounds[1] - bounds[0]


def ratio_interval(
    ratio: Ratio,
    clusters: Clusters | None = None,
    bounds: Bounds = UNBOUNDED,
    confidence: float = 0.95,
    *,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the default interval of a mean, a ratio or a difference of either.

    It is the BCa bootstrap, or for fewer than 20 units Student's t, within the bounds. It reaches
    at least as far as Student's t, because the bootstrap of skewed values covers less than it
    should, and if most units have the same value, as far as `unseen_margin` says.
    """
    units = ratio.grouped(clusters)
    noun = "item" if clusters is None else "cluster"
    counted = count(units.units, noun)
    if is_constant(units.pseudo_values()):
        reason = f"there is one {noun}"
        if units.units > 1:
            reason = f"all {counted} have the same value"
        found = Interval(
            units.estimate, units.estimate, units.estimate, confidence, "", ratio.items
        )
    elif units.units < BOOTSTRAP_FROM:
        reason = f"there are fewer than {BOOTSTRAP_FROM} {noun}s"
        found = student_t(units, confidence)
    else:
        reason = f"there are {counted}"
        bootstrap, t = (
            bca_bootstrap(units, confidence, resamples=resamples),
            student_t(units, confidence),
        )
        found = replace(bootstrap, low=min(bootstrap.low, t.low), high=max(bootstrap.high, t.high))
    margin = unseen_margin(units.pseudo_values(), bounds, confidence)
    return _within_bounds(replace(found, why=reason), margin, bounds)


def unseen_margin(values: Array, bounds: Bounds, confidence: float) -> tuple[float, float]:
    """Return how far a mean may lie below and above an estimate because of values never seen.

    If most of n values are equal and fewer than 20 differ from them, resampling knows little about
    the rare ones. Values that none of the n has shown may have a share of up to 1 - tail^(1/n), by
    the exact interval of 0 of n. If all of them are at a bound of the measure, the mean moves
    towards it by that share. The margin is infinite without bounds, and 0 for other values.
    """
    n, mean = len(values), float(values.mean())
    usual = int((abs(values - np.median(values)) <= 1e-12 * max(1.0, abs(values).max())).sum())
    if usual <= n / 2 or n - usual >= BOOTSTRAP_FROM:
        return 0.0, 0.0
    if not np.isfinite(bounds).all():
        return (math.inf, math.inf) if usual == n else (0.0, 0.0)
    unseen = 1 - ((1 - confidence) / 2) ** (1 / n)
    return unseen * (mean - bounds[0]), unseen * (bounds[1] - mean)


def _within_bounds(found: Interval, margin: tuple[float, float], bounds: Bounds) -> Interval:
    """Widen an interval by a margin, and end it at the bounds."""
    below, above = margin
    if math.isinf(below):
        why = f"{found.why}, and the measure has no bounds"
        return replace(found, low=-math.inf, high=math.inf, method="none", why=why)
    low, high = min(found.low, found.estimate - below), max(found.high, found.estimate + above)
    low, high = max(low, bounds[0]), min(high, bounds[1])
    return replace(found, low=low, high=high, method=found.method or "unseen values")


def welch_interval(
    first: Scores,
    second: Scores,
    confidence: float = 0.95,
    *,
    bounds: Bounds = UNBOUNDED,
) -> Interval:
    """Return the interval of the difference of two means of different items.

    Welch, 1947, doi:10.1093/biomet/34.1-2.28. `bounds` are those of the measure; where most scores
    are equal, the interval is at least as wide as `unseen_margin` says.
    """
    from scipy.special import stdtrit

    one, other = checked(first, bounds=bounds), checked(second, bounds=bounds)
    estimate, n = float(other.mean() - one.mean()), len(one) + len(other)
    error, df = welch_error(one, other)
    found = Interval(estimate, estimate, estimate, confidence, "", n)
    if df > 0:
        probability = 0.5 + check_probability("confidence", confidence) / 2
        half = float(stdtrit(df, probability)) * error
        found = replace(found, low=estimate - half, high=estimate + half, method="Welch t")
    elif not np.isfinite(bounds).all():
        why = "an array has one value, or no two values differ, and the measure has no bounds"
        return replace(found, low=-math.inf, high=math.inf, method="none", why=why)
    if not np.isfinite(bounds).all():
        return found
    margin_one = unseen_margin(one, bounds, confidence)
    margin_other = unseen_margin(other, bounds, confidence)
    margin = _combined(margin_other[0], margin_one[1]), _combined(margin_other[1], margin_one[0])
    return _within_bounds(found, margin, difference_bounds(bounds))


def welch_error(one: Array, other: Array) -> tuple[float, float]:
    """Return the standard error of a difference of means and its degrees of freedom.

    The degrees of freedom are 0 where the error cannot be estimated.
    """
    if min(len(one), len(other)) < 2 or (is_constant(one) and is_constant(other)):
        return 0.0, 0.0
    parts = [float(array.var(ddof=1)) / len(array) for array in (one, other)]
    total = sum(parts)
    df = total**2 / (parts[0] ** 2 / (len(one) - 1) + parts[1] ** 2 / (len(other) - 1))
    return math.sqrt(total), df


def pass_at(k: int, tries: int, right: int) -> float:
    """Return the unbiased estimate of pass@k: the chance that one of k answers is right.

    1 - C(n - c, k) / C(n, k) for c right of n tries (Chen et al., 2021, arXiv:2107.03374, eq. 1).
    Raises DataError for impossible counts.
    """
    if not 1 <= k <= tries or not 0 <= right <= tries:
        raise DataError(
            f"pass@{k} of {right} right answers among {tries}: k must be from 1 to the number of "
            "tries, and no more of them can be right"
        )
    return 1 - math.comb(tries - right, k) / math.comb(tries, k)


def _check_share(successes: float, n: float) -> None:
    if not (n > 0 and 0 <= successes <= n and math.isfinite(n)):
        raise DataError(
            f"{successes} successes of {n}: a share needs n above 0, and at most n successes"
        )


def _check_binary(*arrays: Array) -> None:
    if not is_binary(*arrays):
        raise DataError("an interval of shares needs scores of 0 and 1 only")

"""Effect sizes with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from kitchen.errors import DataError
from kitchen.statistics.groups import kruskal, sums_of_squares
from kitchen.statistics.intervals import Interval, clopper_pearson, standard_error
from kitchen.statistics.power import noncentral_t
from kitchen.statistics.samples import (
    SHARE,
    Clusters,
    Ratio,
    Scores,
    check_probability,
    checked,
    checked_pair,
    is_binary,
    is_constant,
)
from kitchen.types import Array

TOO_LARGE = "the effect is too large for its interval to be computed"
MAX_NONCENTRALITY = 1e8  # above it, noncentral distributions take minutes to compute


def discordant_odds_ratio(first: Scores, second: Scores, confidence: float = 0.95) -> Interval:
    """Return the odds that an item on which two sets of 0/1 scores differ is right in the second.

    The interval is exact (Clopper and Pearson). The ratio is infinite if the first is never alone
    right. Raises DataError if no item differs.
    """
    one, other = checked_pair(first, second, bounds=SHARE)
    only_first, only_second = int((one > other).sum()), int((other > one).sum())
    if not is_binary(one, other) or not only_first + only_second:
        raise DataError("an odds ratio needs scores of 0 and 1, of which some differ")
    share = clopper_pearson(only_second, only_first + only_second, confidence)
    estimate, low, high = (_odds(end) for end in (share.estimate, share.low, share.high))
    return Interval(estimate, low, high, confidence, "odds ratio of discordant pairs", len(one))


def _odds(share: float) -> float:
    return share / (1 - share) if share < 1 else math.inf


def cohens_h(first: Scores, second: Scores, confidence: float = 0.95) -> Interval:
    """Return the difference of two shares on the arcsine scale (Cohen, 1988, ch. 6)."""
    from scipy.special import ndtri

    one, other = checked(first, bounds=SHARE), checked(second, bounds=SHARE)
    h = 2 * math.asin(math.sqrt(other.mean())) - 2 * math.asin(math.sqrt(one.mean()))
    z = float(ndtri(0.5 + check_probability("confidence", confidence) / 2))
    half = z * math.sqrt(1 / len(one) + 1 / len(other))
    low, high = max(h - half, -math.pi), min(h + half, math.pi)
    return Interval(h, low, high, confidence, "Cohen's h", len(one) + len(other))


def cohens_dz(first: Scores, second: Scores, confidence: float = 0.95) -> Interval:
    """Return the mean difference of the same items in its standard deviations (Cohen, 1988).

    The interval comes from the noncentral t distribution. Raises DataError where no standard
    deviation can be estimated.
    """
    ratio = Ratio.difference(first, second)
    error, n = standard_error(ratio), ratio.units
    if error == 0:
        raise DataError("Cohen's dz needs at least two items, with different differences")
    t = ratio.estimate / error
    scale = 1 / math.sqrt(n)
    low, high = _noncentral_t(t, n - 1, confidence)
    return Interval(t * scale, low * scale, high * scale, confidence, "Cohen's dz", ratio.items)


def cohens_d(first: Scores, second: Scores) -> float:
    """Return the difference of two means in pooled standard deviations (Cohen, 1988)."""
    one, other = checked(first), checked(second)
    df = len(one) + len(other) - 2
    squares = float(((one - one.mean()) ** 2).sum() + ((other - other.mean()) ** 2).sum())
    if df < 1 or (is_constant(one) and is_constant(other)):
        raise DataError("a standardised difference needs scores that differ within an array")
    return float(other.mean() - one.mean()) / math.sqrt(squares / df)


def hedges_g(first: Scores, second: Scores, confidence: float = 0.95) -> Interval:
    """Return the difference of two means in pooled standard deviations, without bias.

    Hedges, 1981, doi:10.3102/10769986006002107, with the exact correction and an interval from the
    noncentral t distribution.
    """
    from scipy.special import gammaln

    d = cohens_d(first, second)
    n_one, n_other = len(first), len(second)
    df = n_one + n_other - 2
    unbias = 1.0  # not defined for one degree of freedom
    if df > 1:
        unbias = math.exp(gammaln(df / 2) - math.log(math.sqrt(df / 2)) - gammaln((df - 1) / 2))
    scale = math.sqrt(1 / n_one + 1 / n_other)
    low, high = _noncentral_t(d / scale, df, confidence)
    ends = d * unbias, low * scale * unbias, high * scale * unbias
    return Interval(*ends, confidence, "Hedges' g", n_one + n_other)


def cliffs_delta(
    first: Scores, second: Scores, confidence: float = 0.95, *, paired: bool = False
) -> Interval:
    """Return P(second > first) - P(second < first) over all pairs of scores (Cliff, 1993).

    doi:10.1037/0033-2909.114.3.494. The interval is the asymmetric one of Feng and Cliff, 2004,
    doi:10.22237/jmasm/1099267560, which stays within -1 and 1. `paired`: for the same items.
    """
    from scipy.special import stdtrit

    one, other = checked_pair(first, second) if paired else (checked(first), checked(second))
    delta, rows, columns = _dominance(one, other)
    n = min(len(one), len(other))
    probability = 0.5 + check_probability("confidence", confidence) / 2
    if paired:
        t = float(stdtrit(max(n - 1, 1), probability))
        variance = _variance(rows + columns) / n
    else:
        t = float(stdtrit(max(len(one) + len(other) - 2, 1), probability))
        variance = _variance(columns) / len(one) + _variance(rows) / len(other)
    if abs(delta) == 1 or variance <= 1e-15:  # as wide as a share of which nothing else was seen
        unseen = t**2 / (n + t**2)
        low, high = delta - (1 + delta) * unseen, delta + (1 - delta) * unseen
    else:
        middle, spread = delta - delta**3, t * math.sqrt(variance)
        half = spread * math.sqrt((1 - delta**2) ** 2 + spread**2)
        low = (middle - half) / (1 - delta**2 + spread**2)
        high = (middle + half) / (1 - delta**2 + spread**2)
    items = n if paired else len(one) + len(other)
    return Interval(delta, max(low, -1.0), min(high, 1.0), confidence, "Cliff's delta", items)


def _dominance(one: Array, other: Array) -> tuple[float, Array, Array]:
    """Return delta, and its conditional means for each second and each first score."""
    order_one, order_other = np.sort(one), np.sort(other)
    below = np.searchsorted(order_one, other, "left") + np.searchsorted(order_one, other, "right")
    of_other = below / len(one) - 1.0
    above = np.searchsorted(order_other, one, "left") + np.searchsorted(order_other, one, "right")
    of_one = 1.0 - above / len(other)
    return float(of_other.mean()), of_other, of_one


def _variance(values: Array) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def eta_squared(groups: Sequence[Scores], confidence: float = 0.95) -> Interval:
    """Return the share of the variance that lies between groups.

    The interval comes from the noncentral F distribution (Steiger, 2004,
    doi:10.1037/1082-989X.9.2.164).
    """
    from scipy.special import ncfdtr

    arrays = [checked(group, f"group {at}", at_least=2) for at, group in enumerate(groups)]
    between, within, df = sums_of_squares(arrays)
    n = sum(map(len, arrays))
    if within <= 1e-24:
        raise DataError("eta squared needs scores that differ within a group")
    f, estimate = between / df[0] / (within / df[1]), between / (between + within)
    ends = _noncentralities(lambda shift: float(ncfdtr(*df, shift, f)), f * df[0], confidence)
    low, high = (end / (end + n) for end in ends)
    return Interval(estimate, min(low, estimate), max(high, estimate), confidence, "eta squared", n)


def epsilon_squared(groups: Sequence[Scores], confidence: float = 0.95) -> Interval:
    """Return the share of the variance of ranks that lies between groups: H / (n - 1).

    The interval comes from the noncentral chi-square distribution, which H follows approximately.
    """
    from scipy.special import chndtr

    test = kruskal(groups)
    if test.statistic is None:
        raise DataError("epsilon squared needs scores that differ")
    h, df, n = test.statistic, test.df[0], test.n
    ends = _noncentralities(lambda shift: float(chndtr(h, df, shift)), h, confidence)
    estimate = h / (n - 1)
    low, high = min(ends[0] / (n - 1), estimate), min(max(ends[1] / (n - 1), estimate), 1.0)
    return Interval(estimate, low, high, confidence, "epsilon squared", n)


def standard_deviation(values: Scores, confidence: float = 0.95) -> Interval:
    """Return the standard deviation of independent values, such as one per seed.

    The interval comes from the chi-square distribution, for normal values. Raises DataError for
    fewer than two values.
    """
    from scipy.special import chdtri

    array = checked(values, at_least=2)
    df = len(array) - 1
    tail = (1 - check_probability("confidence", confidence)) / 2
    estimate = 0.0 if is_constant(array) else float(array.std(ddof=1))
    squares = df * estimate**2
    low = math.sqrt(squares / float(chdtri(df, tail)))
    high = math.sqrt(squares / float(chdtri(df, 1 - tail)))
    method = "standard deviation"
    if estimate == 0:
        return Interval(0.0, 0.0, math.inf, confidence, method, len(array), "all values are equal")
    return Interval(estimate, low, high, confidence, method, len(array))


def design_effect(values: Scores, clusters: Clusters, confidence: float = 0.95) -> Interval:
    """Return the variance of a mean of clustered items over that of independent ones (Kish, 1965).

    The interval is that of the variance between clusters, which has as many degrees of freedom as
    clusters less one. Raises DataError where either variance is 0.
    """
    from scipy.special import chdtri

    scores = checked(values, at_least=2)
    units = Ratio.of(scores).grouped(clusters)
    independent, clustered = standard_error(Ratio.of(scores)), standard_error(units)
    if independent == 0 or clustered == 0:
        raise DataError("a design effect needs scores that differ, in at least two clusters")
    df, estimate = units.units - 1, (clustered / independent) ** 2
    tail = (1 - check_probability("confidence", confidence)) / 2
    low = estimate * df / float(chdtri(df, tail))
    high = estimate * df / float(chdtri(df, 1 - tail))
    return Interval(estimate, low, high, confidence, "design effect", len(scores))


def _noncentral_t(t: float, df: float, confidence: float) -> tuple[float, float]:
    """Return the noncentralities at which t is the upper and the lower tail quantile."""
    tail = (1 - check_probability("confidence", confidence)) / 2
    # the noncentrality is within this range of t: its standard error is below 1 + |t| / sqrt(2 df)
    reach = 12 * (1 + abs(t) / math.sqrt(df))

    def end(probability: float) -> float:
        return _root(lambda shift: noncentral_t(df, shift, t) - probability, t - reach, t + reach)

    return end(1 - tail), end(tail)


def _noncentralities(
    distribution: Callable[[float], float], start: float, confidence: float
) -> tuple[float, float]:
    """Return the noncentralities, at least 0, at which a statistic is a tail quantile."""
    tail = (1 - check_probability("confidence", confidence)) / 2
    if start > MAX_NONCENTRALITY:
        raise DataError(TOO_LARGE)

    def end(probability: float) -> float:
        if distribution(0.0) <= probability:
            return 0.0
        most = start + 20
        while distribution(most) > probability:  # far in its tails, the distribution is NaN
            most *= 2
        return _root(lambda shift: distribution(shift) - probability, 0.0, most)

    return end(1 - tail), end(tail)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    def checked_function(value: float) -> float:
        found = function(value)
        if math.isnan(found):  # beyond the precision of the distribution
            raise DataError(TOO_LARGE)
        return found

    if checked_function(low) * checked_function(high) > 0:
        raise DataError(TOO_LARGE)
    root = float(brentq(checked_function, low, high, xtol=1e-12, rtol=1e-12))
    if abs(function(root)) > 1e-6:  # a jump in the tails of noncentral t
        raise DataError(TOO_LARGE)
    return root

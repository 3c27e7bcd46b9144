"""Tests of significance of one difference, which return p-values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kitchen.errors import ConfigError, DataError
from kitchen.statistics.intervals import standard_error, welch_error
from kitchen.statistics.resampling import RESAMPLES, SEED, sign_flipped
from kitchen.statistics.samples import (
    SHARE,
    Clusters,
    Ratio,
    Scores,
    checked,
    checked_pair,
    count,
    is_binary,
    is_constant,
)
from kitchen.types import Array

EXACT_RANKS_BELOW = 50  # items; R's rule for exact p-values of rank tests without ties


@dataclass(frozen=True)
class SignificanceResult:
    """A two-sided p-value, unless the method says otherwise, with its test."""

    p_value: float
    method: str
    n: int  # number of items
    statistic: float | None = None
    df: tuple[float, ...] = ()  # degrees of freedom
    why: str = ""  # one sentence on the choice of the test, or on its limits


def format_p(p_value: float) -> str:
    """Return `p = 0.012`, or `p < 1e-10` for one that floating-point numbers do not tell from 0."""
    return "p < 1e-10" if p_value < 1e-10 else f"p = {p_value:.2g}"


def mcnemar(first: Scores, second: Scores, *, mid_p: bool = False) -> SignificanceResult:
    """Return McNemar's exact test of 0/1 scores of the same items.

    McNemar, 1947, doi:10.1007/BF02295996. Only items count on which the two differ: under the null
    hypothesis, either is equally likely to be right. The mid-p version counts half of the
    probability of the observed table; its type-I error is closer to alpha, but can exceed it
    (Fagerland, Lydersen and Laake, 2013, doi:10.1186/1471-2288-13-91).
    """
    from scipy.special import bdtr

    one, other = _binary_pair(first, second)
    only_first, only_second = int((one > other).sum()), int((other > one).sum())
    fewer, discordant = min(only_first, only_second), only_first + only_second
    tail = float(bdtr(fewer, discordant, 0.5)) if discordant else 1.0
    if mid_p:
        tail -= math.comb(discordant, fewer) / 2 ** (discordant + 1)
    why = f"the scores are 0 or 1, and {count(discordant, 'item')} of {len(one)} differ"
    method = "McNemar, mid-p" if mid_p else "exact McNemar"
    p_value = min(2 * tail, 1.0)
    return SignificanceResult(p_value, method, len(one), float(only_second), why=why)


def sign_flip(
    first: Scores,
    second: Scores,
    sizes: Scores | None = None,
    second_sizes: Scores | None = None,
    *,
    clusters: Clusters | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> SignificanceResult:
    """Return the permutation test of the same items, with the scores of an item exchanged.

    Fisher, 1935, The Design of Experiments, ch. 21. The statistic is the difference of the means,
    or with sizes of the ratios of sums. All items of a cluster are exchanged together. Up to 16
    units, all exchanges are enumerated. Above, p = (1 + count) / (1 + resamples), so that it is
    never 0 (Phipson and Smyth, 2010, doi:10.2202/1544-6115.1585).
    """
    ratio = Ratio.difference(first, second, sizes, second_sizes)
    return permutation_of(ratio.grouped(clusters), clusters is not None, resamples, seed)


def permutation_of(
    ratio: Ratio, clustered: bool = False, resamples: int = RESAMPLES, seed: int = SEED
) -> SignificanceResult:
    """Return the sign-flip permutation test of a difference, over its units."""
    values, exact = sign_flipped(ratio, resamples, seed)
    estimate = ratio.estimate
    # equal values may differ in their last bits
    extreme = int((abs(values) >= abs(estimate) - 1e-12 * max(1.0, abs(estimate))).sum())
    p_value = extreme / len(values) if exact else (1 + extreme) / (1 + len(values))
    units = count(ratio.units, "cluster" if clustered else "item")
    why = f"the scores of {units} are exchanged at random"
    if exact:
        smallest = min(1.0, 2 / 2**ratio.units)
        why = f"all exchanges of {units} are enumerated; p cannot be below {smallest:.2g}"
    method = "cluster permutation" if clustered else "sign-flip permutation"
    return SignificanceResult(p_value, method, ratio.items, estimate, why=why)


def wilcoxon(first: Scores, second: Scores) -> SignificanceResult:
    """Return Wilcoxon's signed-rank test of the same items.

    Wilcoxon, 1945, doi:10.2307/3001968. Items without a difference are left out. It is exact for
    fewer than 50 differences without ties, else normal without a continuity correction.
    """
    from scipy import stats

    one, other = checked_pair(first, second)
    differences = other - one
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return SignificanceResult(1.0, "Wilcoxon", len(one), why="no item differs")
    sizes = np.abs(nonzero)
    exact = len(nonzero) < EXACT_RANKS_BELOW and len(np.unique(sizes)) == len(sizes)
    method = stats_method(exact)
    found = stats.wilcoxon(nonzero, method=method, correction=False, zero_method="wilcox")
    why = f"{method}, over {count(len(nonzero), 'item')} that differ"
    return SignificanceResult(
        float(found.pvalue), "Wilcoxon", len(one), float(found.statistic), why=why
    )


def mann_whitney(first: Scores, second: Scores) -> SignificanceResult:
    """Return the rank-sum test of different items (Mann and Whitney, 1947).

    doi:10.1214/aoms/1177730491. It is exact if both have fewer than 50 items and there are no ties,
    else normal without a continuity correction.
    """
    from scipy import stats

    one, other = checked(first), checked(second)
    both = np.concatenate([one, other])
    if is_constant(both):
        return SignificanceResult(1.0, "Mann-Whitney", len(both), why="all scores are equal")
    exact = max(len(one), len(other)) < EXACT_RANKS_BELOW and len(np.unique(both)) == len(both)
    method = stats_method(exact)
    found = stats.mannwhitneyu(other, one, use_continuity=False, method=method)
    return SignificanceResult(
        float(found.pvalue), "Mann-Whitney", len(both), float(found.statistic), why=method
    )


def stats_method(exact: bool) -> str:
    return "exact" if exact else "asymptotic"


def fisher_exact(first: Scores, second: Scores, *, mid_p: bool = False) -> SignificanceResult:
    """Return Fisher's exact test of 0/1 scores of different items.

    Fisher, 1935, doi:10.2307/2342435: the sum of the probabilities of all tables with the same
    margins that are no more probable than the observed one. The mid-p version counts half of the
    probability of the tables that are as probable as it.
    """
    from scipy.special import gammaln

    one, other = checked(first, bounds=SHARE), checked(second, bounds=SHARE)
    if not is_binary(one, other):
        raise DataError("Fisher's exact test needs scores of 0 and 1 only")
    n_one, n_other, successes = len(one), len(other), int(one.sum() + other.sum())
    n = n_one + n_other
    cell = np.arange(max(0, successes - n_other), min(successes, n_one) + 1, dtype=np.float64)

    def log_choose(total: float, chosen: Array) -> Array:
        logs: Array = gammaln(total + 1) - gammaln(chosen + 1) - gammaln(total - chosen + 1)
        return logs

    logs = log_choose(n_one, cell) + log_choose(n_other, successes - cell)
    logs -= log_choose(n, np.array([successes]))
    observed = logs[int(one.sum()) - int(cell[0])]
    p_value = float(np.exp(logs[logs <= observed + 1e-7]).sum())  # R's tolerance for equal tables
    if mid_p and len(cell) > 1:  # the only possible table shows nothing
        p_value -= float(np.exp(logs[abs(logs - observed) <= 1e-7]).sum()) / 2
    method = "Fisher, mid-p" if mid_p else "Fisher exact"
    why = "the scores are 0 or 1, and the items differ"
    return SignificanceResult(min(p_value, 1.0), method, n, why=why)


def welch(first: Scores, second: Scores) -> SignificanceResult:
    """Return Welch's t test of the means of different items (Welch, 1947)."""
    from scipy.special import stdtr

    one, other = checked(first), checked(second)
    n = len(one) + len(other)
    error, df = welch_error(one, other)
    difference = float(other.mean() - one.mean())
    if df == 0:
        why = "an array has one value, or no two values differ: there is no estimate of the noise"
        return SignificanceResult(1.0, "Welch t", n, why=why)
    t = difference / error
    return SignificanceResult(2 * float(stdtr(df, -abs(t))), "Welch t", n, t, (df,))


def paired_t(first: Scores, second: Scores) -> SignificanceResult:
    """Return Student's t test of the differences of the same items."""
    return t_test_of(Ratio.difference(first, second))


def t_test_of(ratio: Ratio) -> SignificanceResult:
    """Return Student's t test that a difference is 0, over its units."""
    from scipy.special import stdtr

    error, df = standard_error(ratio), ratio.units - 1
    if error == 0:
        why = "one unit, or equal differences: there is no estimate of the noise"
        return SignificanceResult(1.0, "paired t", ratio.items, why=why)
    t = ratio.estimate / error
    p_value = 2 * float(stdtr(df, -abs(t)))
    return SignificanceResult(p_value, "paired t", ratio.items, t, (float(df),))


def tost(
    first: Scores, second: Scores, margin: float, *, paired: bool = True
) -> SignificanceResult:
    """Return two one-sided t tests that the means differ by less than a margin.

    Schuirmann, 1987, doi:10.1007/BF01068419. A small p-value says that they are equivalent. It is
    below alpha where the t interval of confidence 1 - 2 alpha lies within the margin.
    """
    from scipy.special import stdtr

    check_margin(margin)
    if paired:
        ratio = Ratio.difference(first, second)
        estimate, error, df = ratio.estimate, standard_error(ratio), float(ratio.units - 1)
        n = ratio.items
    else:
        one, other = checked(first), checked(second)
        estimate, n = float(other.mean() - one.mean()), len(one) + len(other)
        error, df = welch_error(one, other)
    if error == 0:
        why = "there is no estimate of the noise"
        return SignificanceResult(1.0, "two one-sided t tests", n, why=why)
    t = (margin - abs(estimate)) / error
    return SignificanceResult(float(stdtr(df, -t)), "two one-sided t tests", n, t, (df,))


def check_margin(margin: float) -> None:
    """Raise ConfigError for a margin of equivalence that is not above 0."""
    if not (math.isfinite(margin) and margin > 0):
        raise ConfigError(f"margin={margin} must be a number above 0, such as 0.02")


def _binary_pair(first: Scores, second: Scores) -> tuple[Array, Array]:
    one, other = checked_pair(first, second, bounds=SHARE)
    if not is_binary(one, other):
        raise DataError("McNemar's test needs scores of 0 and 1 only")
    return one, other

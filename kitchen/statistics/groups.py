"""Tests of three or more groups of scores, and of all pairs of groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np

from kitchen.errors import DataError
from kitchen.statistics.intervals import welch_error
from kitchen.statistics.samples import (
    Scores,
    checked,
    checked_matrix,
    count,
    is_binary,
    is_constant,
)
from kitchen.statistics.significance import SignificanceResult
from kitchen.types import Array

MOST_ASSIGNMENTS = 50_000  # of scores to groups that are enumerated: 34,650 for 3 groups of 4
Pair = tuple[int, int]  # positions of two groups
NO_NOISE = "the scores within each group are equal: there is no estimate of the noise"


def cochran_q(groups: Sequence[Scores] | Array) -> SignificanceResult:
    """Return Cochran's Q test of 0/1 scores of the same items (Cochran, 1950).

    doi:10.2307/2332378. Groups are (k, n). Items that all groups score alike do not count.
    """
    scores = checked_matrix(groups, "group")
    if not is_binary(scores):
        raise DataError("Cochran's Q needs scores of 0 and 1 only")
    k, n = scores.shape
    of_groups, of_items = scores.sum(axis=1), scores.sum(axis=0)
    total = scores.sum()
    spread = k * total - (of_items**2).sum()
    if spread == 0:
        return SignificanceResult(1.0, "Cochran's Q", n, why="no item differs between groups")
    q = (k - 1) * (k * (of_groups**2).sum() - total**2) / spread
    why = "the scores are 0 or 1, of the same items"
    return _chi_square("Cochran's Q", float(q), k - 1, n, why)


def friedman(groups: Sequence[Scores] | Array) -> SignificanceResult:
    """Return Friedman's rank test of the same items (Friedman, 1937), corrected for ties.

    doi:10.1080/01621459.1937.10503522. Groups are (k, n); ranks are those within an item.
    """
    from scipy.stats import rankdata

    scores = checked_matrix(groups, "group")
    k, n = scores.shape
    ranks = rankdata(scores, axis=0)
    spread = ((ranks - (k + 1) / 2) ** 2).sum() / (k - 1)
    if spread == 0:
        return SignificanceResult(1.0, "Friedman", n, why="no item differs between groups")
    sums = ranks.sum(axis=1) - n * (k + 1) / 2
    return _chi_square("Friedman", float((sums**2).sum() / spread), k - 1, n, "the same items")


def anova(groups: Sequence[Scores]) -> SignificanceResult:
    """Return the one-way analysis of variance of different items, with equal variances."""
    from scipy.special import fdtrc

    arrays = _groups(groups)
    between, within, df = sums_of_squares(arrays)
    n = sum(map(len, arrays))
    if within == 0:
        return SignificanceResult(1.0, "ANOVA", n, why=NO_NOISE)
    f = between / df[0] / (within / df[1])
    why = "no difference of variances was found"
    return SignificanceResult(float(fdtrc(*df, f)), "ANOVA", n, f, df, why)


def welch_anova(groups: Sequence[Scores]) -> SignificanceResult:
    """Return Welch's analysis of variance, which allows unequal variances (Welch, 1951).

    doi:10.1093/biomet/38.3-4.330.
    """
    from scipy.special import fdtrc

    arrays = _groups(groups)
    n = sum(map(len, arrays))
    if any(is_constant(array) for array in arrays):
        return SignificanceResult(1.0, "Welch's ANOVA", n, why="a group has equal scores only")
    k = len(arrays)
    weights = np.array([len(array) / array.var(ddof=1) for array in arrays])
    means = np.array([array.mean() for array in arrays])
    mean = (weights * means).sum() / weights.sum()
    degrees = np.array([len(array) - 1 for array in arrays])
    imbalance = ((1 - weights / weights.sum()) ** 2 / degrees).sum()
    f = float((weights * (means - mean) ** 2).sum() / (k - 1))
    f /= 1 + 2 * (k - 2) / (k**2 - 1) * float(imbalance)
    df = float(k - 1), float((k**2 - 1) / (3 * imbalance))
    why = "the variances of the groups differ"
    return SignificanceResult(float(fdtrc(*df, f)), "Welch's ANOVA", n, f, df, why)


def kruskal(groups: Sequence[Scores]) -> SignificanceResult:
    """Return the rank test of different items, corrected for ties (Kruskal and Wallis, 1952).

    doi:10.1080/01621459.1952.10483441.
    """
    arrays = _groups(groups, at_least=1)
    n = sum(map(len, arrays))
    ranks, variance = _mean_ranks(arrays)
    if variance == 0:
        return SignificanceResult(1.0, "Kruskal-Wallis", n, why="all scores are equal")
    sizes = np.array([len(array) for array in arrays])
    h = float((sizes * (ranks - (n + 1) / 2) ** 2).sum() / variance)
    return _chi_square("Kruskal-Wallis", h, len(arrays) - 1, n, "over ranks")


def kruskal_exact(groups: Sequence[Scores]) -> SignificanceResult:
    """Return Kruskal and Wallis's test with an exact p-value, where the scores are few.

    The p-value is the share of all assignments of the scores to the groups whose statistic is as
    large, which allows for ties. For more than `MOST_ASSIGNMENTS`, it is the p-value of `kruskal`.
    """
    found, sizes = kruskal(groups), [len(group) for group in groups]
    if found.statistic is None or _assignments(sizes) > MOST_ASSIGNMENTS:
        return found
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate(_groups(groups, at_least=1)))
    ends = np.cumsum(sizes)[:-1]
    observed = sum(float(part.sum()) ** 2 / len(part) for part in np.split(ranks, ends))
    all_sums = np.array(list(_squared_rank_sums(ranks.tolist(), sizes)))
    p_value = float((all_sums >= observed - 1e-9 * observed).mean())
    return replace(found, p_value=p_value, method="exact Kruskal-Wallis", why="few scores")


def smallest_kruskal(sizes: Sequence[int]) -> float:
    """Return the smallest p-value that `kruskal_exact` can have with groups of these sizes.

    It is 0 for more than `MOST_ASSIGNMENTS` assignments.
    """
    if _assignments(sizes) > MOST_ASSIGNMENTS:
        return 0.0
    all_sums = _without_ties(sizes)
    return float((all_sums >= all_sums.max() * (1 - 1e-9)).mean())


def kruskal_power(means: Sequence[float], sizes: Sequence[int], alpha: float) -> float:
    """Return the power of `kruskal_exact` for groups with normal noise of variance 1.

    It is the share of simulated experiments, always the same ones, whose p-value is at most
    `alpha`.
    """
    n = sum(sizes)
    shifts = np.repeat(np.array(means), sizes)
    experiments = max(200, min(4_000, 400_000 // n))
    scores = shifts + np.random.default_rng(0).normal(size=(experiments, n))
    ranks = scores.argsort(axis=1).argsort(axis=1) + 1.0
    starts = np.cumsum([0, *sizes[:-1]])
    sums = (np.add.reduceat(ranks, starts, axis=1) ** 2 / np.array(sizes)).sum(axis=1)
    return float((sums >= _critical_sum(tuple(sizes), alpha) * (1 - 1e-9)).mean())


@cache
def _critical_sum(sizes: tuple[int, ...], alpha: float) -> float:
    """Return the smallest sum of squared rank sums that is significant without ties."""
    from scipy.special import chdtri

    if _assignments(sizes) > MOST_ASSIGNMENTS:
        n = sum(sizes)
        return float((chdtri(len(sizes) - 1, alpha) + 3 * (n + 1)) * n * (n + 1) / 12)
    all_sums = np.sort(_without_ties(sizes))
    found = np.unique(all_sums.round(9))
    as_large = len(all_sums) - np.searchsorted(all_sums, found * (1 - 1e-9))
    return float(np.append(found[as_large / len(all_sums) <= alpha], math.inf)[0])


def _without_ties(sizes: Sequence[int]) -> Array:
    """Return the sum of squared rank sums of every assignment of different scores to groups."""
    ranks = [float(rank) for rank in range(1, sum(sizes) + 1)]
    return np.array(list(_squared_rank_sums(ranks, sizes)))


def _assignments(sizes: Sequence[int]) -> int:
    """Return the number of ways to divide items into groups of these sizes."""
    return math.factorial(sum(sizes)) // math.prod(map(math.factorial, sizes))


def _squared_rank_sums(ranks: Sequence[float], sizes: Sequence[int]) -> Iterator[float]:
    """Yield the sum of squared rank sums, each divided by its size, for every assignment."""
    size, *others = sizes
    if not others:
        yield sum(ranks) ** 2 / size
        return
    for chosen in combinations(range(len(ranks)), size):
        first = sum(ranks[at] for at in chosen) ** 2 / size
        left = [rank for at, rank in enumerate(ranks) if at not in chosen]
        for rest in _squared_rank_sums(left, others):
            yield first + rest


def fligner(groups: Sequence[Scores]) -> SignificanceResult:
    """Return the test of equal variances of Fligner and Killeen (1976).

    doi:10.2307/2285771. It does not need normal scores.
    """
    from scipy import stats

    arrays = _groups(groups)
    n = sum(map(len, arrays))
    deviations = [array - np.median(array) for array in arrays]
    if is_constant(np.abs(np.concatenate(deviations))):
        return SignificanceResult(1.0, "Fligner-Killeen", n, why="all deviations are equal")
    found = stats.fligner(*arrays)
    return SignificanceResult(float(found.pvalue), "Fligner-Killeen", n, float(found.statistic))


def bartlett(groups: Sequence[Scores]) -> SignificanceResult:
    """Return Bartlett's test of equal variances of normal scores (Bartlett, 1937)."""
    from scipy import stats

    arrays = _groups(groups)
    n = sum(map(len, arrays))
    if any(is_constant(array) for array in arrays):
        return SignificanceResult(1.0, "Bartlett", n, why="a group has equal scores only")
    found = stats.bartlett(*arrays)
    return SignificanceResult(float(found.pvalue), "Bartlett", n, float(found.statistic))


def shapiro(values: Scores) -> SignificanceResult:
    """Return the test of normality of Shapiro and Wilk (1965), for 3 to 5,000 scores."""
    from scipy import stats

    array = checked(values, at_least=3)
    if len(array) > 5000 or is_constant(array):
        raise DataError(
            f"Shapiro and Wilk's test needs 3 to 5,000 scores that differ, and got {len(array)}"
        )
    found = stats.shapiro(array)
    return SignificanceResult(
        float(found.pvalue), "Shapiro-Wilk", len(array), float(found.statistic)
    )


def tukey(groups: Sequence[Scores]) -> Mapping[Pair, SignificanceResult]:
    """Return Tukey's test of all pairs of means with equal variances, by Kramer for unequal n.

    The p-values are corrected for the number of pairs.
    """
    arrays = _groups(groups)
    _, within, df = sums_of_squares(arrays)
    variance = within / df[1]

    def error(one: Array, other: Array) -> tuple[float, float]:
        return math.sqrt(variance * (1 / len(one) + 1 / len(other))), df[1]

    return _studentized_range("Tukey", arrays, error)


def games_howell(groups: Sequence[Scores]) -> Mapping[Pair, SignificanceResult]:
    """Return the test of all pairs of means of Games and Howell (1976), for unequal variances.

    doi:10.3102/10769986001002113. The p-values are corrected for the number of pairs.
    """
    return _studentized_range("Games-Howell", _groups(groups), welch_error)


def _studentized_range(
    method: str, arrays: Sequence[Array], error: Callable[[Array, Array], tuple[float, float]]
) -> Mapping[Pair, SignificanceResult]:
    from scipy.stats import studentized_range

    found: dict[Pair, SignificanceResult] = {}
    for i, j in combinations(range(len(arrays)), 2):
        one, other = arrays[i], arrays[j]
        n = len(one) + len(other)
        noise, df = error(one, other)
        if noise == 0:
            found[i, j] = SignificanceResult(1.0, method, n, why=NO_NOISE)
            continue
        q = abs(float(other.mean() - one.mean())) / noise * math.sqrt(2)
        p_value = float(studentized_range.sf(q, len(arrays), df))
        why = f"corrected for {len(arrays)} groups"
        found[i, j] = SignificanceResult(min(max(p_value, 0.0), 1.0), method, n, q, (df,), why)
    return found


def dunn(groups: Sequence[Scores]) -> Mapping[Pair, SignificanceResult]:
    """Return Dunn's test of all pairs by the ranks of Kruskal and Wallis (Dunn, 1964).

    doi:10.1080/00401706.1964.10490181. The p-values are not corrected.
    """
    from scipy.special import ndtr

    arrays = _groups(groups, at_least=1)
    ranks, variance = _mean_ranks(arrays)
    found: dict[Pair, SignificanceResult] = {}
    for i, j in combinations(range(len(arrays)), 2):
        n = len(arrays[i]) + len(arrays[j])
        if variance == 0:
            found[i, j] = SignificanceResult(1.0, "Dunn", n, why="all scores are equal")
            continue
        noise = math.sqrt(variance * (1 / len(arrays[i]) + 1 / len(arrays[j])))
        z = float(ranks[j] - ranks[i]) / noise
        found[i, j] = SignificanceResult(2 * float(ndtr(-abs(z))), "Dunn", n, z)
    return found


def sums_of_squares(arrays: Sequence[Array]) -> tuple[float, float, tuple[float, float]]:
    """Return the sums of squares between and within groups, and their degrees of freedom."""
    everything = np.concatenate(arrays)
    mean = everything.mean()
    between = sum(len(array) * float(array.mean() - mean) ** 2 for array in arrays)
    varied = [array for array in arrays if not is_constant(array)]
    within = sum(float(((array - array.mean()) ** 2).sum()) for array in varied)
    return between, within, (float(len(arrays) - 1), float(len(everything) - len(arrays)))


def _mean_ranks(arrays: Sequence[Array]) -> tuple[Array, float]:
    """Return the (k,) mean ranks, and the variance of a rank, corrected for ties."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate(arrays))
    n = len(ranks)
    _, ties = np.unique(ranks, return_counts=True)
    variance = n * (n + 1) / 12 - float((ties.astype(float) ** 3 - ties).sum()) / (
        12 * max(n - 1, 1)
    )
    ends = np.cumsum([len(array) for array in arrays])[:-1]
    means = np.array([part.mean() for part in np.split(ranks, ends)])
    return means, 0.0 if is_constant(np.concatenate(arrays)) else variance


def _groups(groups: Sequence[Scores], at_least: int = 2) -> list[Array]:
    if len(groups) < 2:
        raise DataError(f"a test of groups needs at least 2, and got {count(len(groups), 'group')}")
    return [checked(group, f"group {at}", at_least=at_least) for at, group in enumerate(groups)]


def _chi_square(method: str, statistic: float, df: int, n: int, why: str) -> SignificanceResult:
    from scipy.special import chdtrc

    found = SignificanceResult(float(chdtrc(df, statistic)), method, n, statistic, (float(df),))
    return replace(found, why=why)

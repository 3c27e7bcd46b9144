"""Comparison of evaluations: interval, test and effect size that suit the data, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal

from kitchen.errors import DataError
from kitchen.statistics.corrections import Correction, correct
from kitchen.statistics.effects import (
    cliffs_delta,
    cohens_dz,
    cohens_h,
    design_effect,
    discordant_odds_ratio,
    epsilon_squared,
    eta_squared,
    hedges_g,
    standard_deviation,
)
from kitchen.statistics.groups import (
    anova,
    cochran_q,
    dunn,
    fligner,
    friedman,
    games_howell,
    kruskal,
    tukey,
    welch_anova,
)
from kitchen.statistics.intervals import (
    Interval,
    difference_bounds,
    interval,
    mean_interval,
    newcombe_paired,
    newcombe_unpaired,
    ratio_interval,
    standard_error,
    welch_error,
    welch_interval,
)
from kitchen.statistics.power import ALPHA, mcnemar_detectable, shares_detectable, t_detectable
from kitchen.statistics.samples import (
    NON_NEGATIVE,
    SHARE,
    UNBOUNDED,
    Bounds,
    Clusters,
    Ratio,
    Scores,
    check_probability,
    checked,
    checked_matrix,
    checked_pair,
    count,
    is_share,
)
from kitchen.statistics.seeds import compare_seed_groups, crossed_error
from kitchen.statistics.significance import (
    SignificanceResult,
    check_margin,
    fisher_exact,
    format_p,
    mann_whitney,
    mcnemar,
    permutation_of,
    welch,
    wilcoxon,
)
from kitchen.types import Array

Verdict = Literal["better", "worse", "same", "cannot tell"]
Means = tuple[Interval, Interval]


@dataclass(frozen=True)
class Measure:
    """The range of a measure, and its direction."""

    bounds: Bounds = UNBOUNDED
    lower_is_better: bool = False


SCORE = Measure(SHARE)  # such as exact match, field F1 or accuracy
LOSS = Measure(NON_NEGATIVE, lower_is_better=True)  # such as nats per token


@dataclass(frozen=True)
class Criteria:
    """When a difference counts: the significance level, and the margin of equivalence."""

    alpha: float = ALPHA
    margin: float | None = None  # the largest difference that does not matter; None: no such test
    measure: Measure = SCORE

    def __post_init__(self) -> None:
        check_probability("alpha", self.alpha)
        check_probability("2 * alpha", 2 * self.alpha)
        if self.margin is not None:
            check_margin(self.margin)

    @property
    def confidence(self) -> float:
        """Confidence of the intervals."""
        return 1 - self.alpha

    def equivalence(self, compute: Callable[[float], Interval]) -> Interval | None:
        """Return the interval of two one-sided tests; None without a margin."""
        return None if self.margin is None else compute(1 - 2 * self.alpha)


DEFAULT = Criteria()
NO_VARIANCE = "equal or single scores have no variance to estimate"
RANKS_OF_PAIRS = "Dunn, Holm"  # the method of a test whose p-values are corrected for all pairs


@dataclass(frozen=True)
class Comparison:
    """A second evaluation compared with a first one, on one measure."""

    n: int  # items of both; for different items, the sum
    first: Interval  # of the mean
    second: Interval
    difference: Interval  # second - first
    test: SignificanceResult
    why: str  # one sentence: why this interval and this test
    criteria: Criteria
    equivalence: Interval | None  # of the difference, with confidence 1 - 2 alpha
    detectable: float | None  # smallest difference with 80 % power; None where none has it
    further_tests: tuple[SignificanceResult, ...] = ()  # not used by the verdict
    effects: Mapping[str, Interval] = field(default_factory=dict)
    # effect sizes that the data does not define, with the reason
    undefined_effects: Mapping[str, str] = field(default_factory=dict)
    by_seeds: Interval | None = None  # of the difference, by seeds alone
    by_seeds_test: SignificanceResult | None = None
    p_corrected: float = 1.0  # the p-value of the test, corrected for multiple comparisons
    verdict: Verdict = "cannot tell"
    reason: str = ""  # of the verdict, in full sentences


def compare_paired(
    first: Scores,
    second: Scores,
    sizes: Scores | None = None,
    second_sizes: Scores | None = None,
    *,
    clusters: Clusters | None = None,
    criteria: Criteria = DEFAULT,
) -> Comparison:
    """Compare two evaluations of the same items, in the same order.

    With sizes, such as numbers of tokens, the measure is sum(scores) / sum(sizes). `clusters` names
    the document or conversation of each item. Average several tries of an item first, with
    `match_items`.
    """
    bounds, confidence = criteria.measure.bounds, criteria.confidence
    one, other = checked_pair(first, second, bounds=bounds)
    ratio = Ratio.difference(one, other, sizes, second_sizes)
    if clusters is not None and ratio.grouped(clusters).units == len(one):
        clusters = None  # each item is one cluster
    of_second = sizes if second_sizes is None else second_sizes
    means = (
        interval(one, sizes, clusters=clusters, bounds=bounds, confidence=confidence),
        interval(other, of_second, clusters=clusters, bounds=bounds, confidence=confidence),
    )
    if sizes is None and clusters is None:
        if is_share(bounds, one, other):
            return _paired_shares(one, other, means, criteria)
        return _paired_scores(one, other, means, criteria)
    return _paired_ratios(ratio, clusters, means, criteria)


def _paired_shares(one: Array, other: Array, means: Means, criteria: Criteria) -> Comparison:
    n, confidence = len(one), criteria.confidence
    differ = float((one != other).mean())
    effects, undefined = _effects(
        {"odds ratio of discordant pairs": lambda: discordant_odds_ratio(one, other, confidence)}
    )
    test = mcnemar(one, other)
    comparison = Comparison(
        n,
        *means,
        newcombe_paired(one, other, confidence),
        test,
        "The items are the same and the scores 0 or 1, so that only items count on which the two "
        "differ.",
        criteria,
        criteria.equivalence(lambda level: newcombe_paired(one, other, level)),
        mcnemar_detectable(n, differ, alpha=criteria.alpha),
        further_tests=(mcnemar(one, other, mid_p=True),),
        effects=effects,
        undefined_effects=undefined,
    )
    return decide(comparison, test.p_value)


def _paired_scores(one: Array, other: Array, means: Means, criteria: Criteria) -> Comparison:
    comparison = _paired_ratios(Ratio.difference(one, other), None, means, criteria)
    confidence = criteria.confidence
    effects, undefined = _effects(
        {
            "Cohen's dz": lambda: cohens_dz(one, other, confidence),
            "Cliff's delta": lambda: cliffs_delta(one, other, confidence, paired=True),
        }
    )
    further_tests = (wilcoxon(one, other),)
    return replace(
        comparison, further_tests=further_tests, effects=effects, undefined_effects=undefined
    )


def _paired_ratios(
    ratio: Ratio, clusters: Clusters | None, means: Means, criteria: Criteria
) -> Comparison:
    units = ratio.grouped(clusters)
    bounds = difference_bounds(criteria.measure.bounds)
    effects: dict[str, Interval] = {}
    undefined: dict[str, str] = {}
    why = "The items are the same, so that the differences of items are compared."
    if clusters is not None:
        why = (
            f"The items come in {count(units.units, 'cluster')}, and items of a cluster are not "
            "independent, so that whole clusters are compared."
        )
        values, groups = ratio.pseudo_values(), clusters
        effects, undefined = _effects(
            {"design effect": lambda: design_effect(values, groups, criteria.confidence)}
        )
    test = permutation_of(units, clusters is not None)
    comparison = Comparison(
        ratio.items,
        *means,
        ratio_interval(ratio, clusters, bounds, criteria.confidence),
        test,
        why,
        criteria,
        criteria.equivalence(lambda level: ratio_interval(ratio, clusters, bounds, level)),
        t_detectable(standard_error(units), units.units - 1, alpha=criteria.alpha),
        effects=effects,
        undefined_effects=undefined,
    )
    return decide(comparison, test.p_value)


def compare_unpaired(
    first: Scores,
    second: Scores,
    sizes: Scores | None = None,
    second_sizes: Scores | None = None,
    *,
    clusters: Clusters | None = None,
    second_clusters: Clusters | None = None,
    criteria: Criteria = DEFAULT,
) -> Comparison:
    """Compare two evaluations of different items, with options as those of `compare_paired`."""
    bounds, confidence = criteria.measure.bounds, criteria.confidence
    if (sizes is None) != (second_sizes is None):
        raise DataError("a ratio is compared with a ratio: give the sizes of both, or of neither")
    one, other = checked(first, bounds=bounds), checked(second, bounds=bounds)
    means = (
        interval(one, sizes, clusters=clusters, bounds=bounds, confidence=confidence),
        interval(
            other, second_sizes, clusters=second_clusters, bounds=bounds, confidence=confidence
        ),
    )
    if sizes is None and clusters is None and second_clusters is None:
        if is_share(bounds, one, other):
            return _unpaired_shares(one, other, means, criteria)
        return _unpaired_scores(one, other, means, criteria)
    # the means of these values are the ratios, and they are independent
    one = Ratio.of(one, sizes).grouped(clusters).pseudo_values()
    other = Ratio.of(other, second_sizes).grouped(second_clusters).pseudo_values()
    return _unpaired_means(one, other, UNBOUNDED, means, criteria)


def _unpaired_shares(one: Array, other: Array, means: Means, criteria: Criteria) -> Comparison:
    confidence = criteria.confidence
    effects, undefined = _effects({"Cohen's h": lambda: cohens_h(one, other, confidence)})
    test = fisher_exact(one, other)
    share = float(one.mean())
    comparison = Comparison(
        len(one) + len(other),
        *means,
        newcombe_unpaired(one, other, confidence),
        test,
        "The items are not the same, and the scores are 0 or 1.",
        criteria,
        criteria.equivalence(lambda level: newcombe_unpaired(one, other, level)),
        shares_detectable(len(one), len(other), share, alpha=criteria.alpha),
        further_tests=(fisher_exact(one, other, mid_p=True),),
        effects=effects,
        undefined_effects=undefined,
    )
    return decide(comparison, test.p_value)


def _unpaired_scores(one: Array, other: Array, means: Means, criteria: Criteria) -> Comparison:
    confidence = criteria.confidence
    effects, undefined = _effects(
        {
            "Hedges' g": lambda: hedges_g(one, other, confidence),
            "Cliff's delta": lambda: cliffs_delta(one, other, confidence),
        }
    )
    comparison = _unpaired_means(one, other, criteria.measure.bounds, means, criteria)
    further_tests = () if comparison.test.method != "Welch t" else (mann_whitney(one, other),)
    return replace(
        comparison, further_tests=further_tests, effects=effects, undefined_effects=undefined
    )


def _unpaired_means(
    one: Array, other: Array, bounds: Bounds, means: Means, criteria: Criteria
) -> Comparison:
    """Compare the means of values, whose bounds may be wider than those of the measure."""
    test, ranks = welch(one, other), mann_whitney(one, other)
    why = "The items are not the same, and the variances of the two evaluations may differ."
    if test.statistic is None and ranks.statistic is not None:
        test = ranks
        why = f"The items are not the same, and {NO_VARIANCE}, so that only ranks are compared."
    comparison = Comparison(
        means[0].n + means[1].n,
        *means,
        _clipped(welch_interval(one, other, criteria.confidence, bounds=bounds), criteria),
        test,
        why,
        criteria,
        criteria.equivalence(lambda level: welch_interval(one, other, level, bounds=bounds)),
        t_detectable(*welch_error(one, other), alpha=criteria.alpha),
    )
    return decide(comparison, test.p_value)


def compare_seeds(
    first: Sequence[Scores] | Array,
    second: Sequence[Scores] | Array,
    *,
    criteria: Criteria = DEFAULT,
) -> Comparison:
    """Compare two groups of runs that differ in their seed: (seeds, n) scores of the same items.

    The verdict is "better" or "worse" only if the analyses with items and seeds crossed, and by
    seeds alone, agree.
    """
    bounds, confidence = criteria.measure.bounds, criteria.confidence
    one = checked_matrix(first, "seed of the first group", bounds=bounds)
    other = checked_matrix(second, "seed of the second group", bounds=bounds)
    found = compare_seed_groups(one, other, confidence)
    means = [group.mean(axis=1) for group in (one, other)]
    effects = {
        "standard deviation between seeds of the first": standard_deviation(means[0], confidence),
        "standard deviation between seeds of the second": standard_deviation(means[1], confidence),
    }
    comparison = Comparison(
        one.shape[1],
        mean_interval(means[0], confidence, bounds=bounds),
        mean_interval(means[1], confidence, bounds=bounds),
        _clipped(found.crossed, criteria),
        found.crossed_test,
        f"There are {len(one)} and {len(other)} seeds, over the same items.",
        criteria,
        criteria.equivalence(lambda level: compare_seed_groups(one, other, level).crossed),
        t_detectable(*crossed_error(one, other), alpha=criteria.alpha),
        effects=effects,
        by_seeds=_clipped(found.by_seeds, criteria),
        by_seeds_test=found.by_seeds_test,
    )
    return decide(comparison, found.crossed_test.p_value)


def _clipped(found: Interval, criteria: Criteria) -> Interval:
    """Return an interval of a difference within the range of the measure."""
    if not found.known:
        return found
    least, most = difference_bounds(criteria.measure.bounds)
    return replace(found, low=max(found.low, least), high=min(found.high, most))


@dataclass(frozen=True)
class GroupComparison:
    """Three or more evaluations, compared all at once and pair by pair, on one measure."""

    test: SignificanceResult  # whether any two differ
    why: str  # one sentence: why this test
    # by the names of two evaluations; p-values are corrected for the number of pairs
    pairs: Mapping[tuple[str, str], Comparison]
    correction: str  # of the p-values of pairs
    further_tests: tuple[SignificanceResult, ...] = ()
    effects: Mapping[str, Interval] = field(default_factory=dict)
    undefined_effects: Mapping[str, str] = field(default_factory=dict)


def compare_many_paired(
    scores: Mapping[str, Scores],
    *,
    correction: Correction = "holm",
    criteria: Criteria = DEFAULT,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> GroupComparison:
    """Compare three or more evaluations of the same items: Cochran's Q or Friedman, then pairs.

    `pairs` are the names of those to compare; None: all.
    """
    _check_many(scores)
    bounds = criteria.measure.bounds
    matrix = checked_matrix(list(scores.values()), "evaluation", bounds=bounds)
    names = list(combinations(scores, 2)) if pairs is None else pairs
    compared = [compare_paired(scores[a], scores[b], criteria=criteria) for a, b in names]
    by_name = dict(zip(names, with_correction(compared, correction), strict=True))
    if is_share(bounds, matrix):
        why = "The items are the same, and the scores 0 or 1."
        return GroupComparison(cochran_q(matrix), why, by_name, correction)
    why = "The items are the same, and the ranks within an item need no normal scores."
    return GroupComparison(friedman(matrix), why, by_name, correction)


def compare_many_unpaired(
    scores: Mapping[str, Scores], *, criteria: Criteria = DEFAULT
) -> GroupComparison:
    """Compare three or more evaluations of different items.

    If Fligner and Killeen's test finds unequal variances, they are compared by Welch's analysis of
    variance and Games and Howell's test of pairs, else by the classical one and Tukey's. Kruskal
    and Wallis's test, and Dunn's with Holm's correction, stand beside them. Kruskal and Wallis's
    replaces an analysis of variance that has no estimate of the noise of a group.
    """
    _check_many(scores)
    bounds = criteria.measure.bounds
    arrays = [checked(each, name, bounds=bounds, at_least=2) for name, each in scores.items()]
    unequal = fligner(arrays).p_value <= criteria.alpha
    found_why = "differ" if unequal else "do not differ detectably"
    variances = f"The items are not the same, and the variances {found_why} (Fligner and Killeen)"
    of_pairs = games_howell(arrays) if unequal else tukey(arrays)
    ranks = dunn(arrays)
    corrected = dict(zip(ranks, correct([each.p_value for each in ranks.values()]), strict=True))
    names, pairs = list(scores), {}
    for (i, j), of_pair in of_pairs.items():
        rank_test = replace(ranks[i, j], p_value=float(corrected[i, j]), method=RANKS_OF_PAIRS)
        found = compare_unpaired(arrays[i], arrays[j], criteria=criteria)
        found = _with_test_of_pairs(found, of_pair, rank_test, variances)
        pairs[names[i], names[j]] = decide(found, found.test.p_value)
    effects, undefined = _effects(
        {
            "eta squared": lambda: eta_squared(arrays, criteria.confidence),
            "epsilon squared": lambda: epsilon_squared(arrays, criteria.confidence),
        }
    )
    test, why, further_tests = _overall_unpaired(arrays, unequal, variances)
    method = next(iter(of_pairs.values())).method
    return GroupComparison(test, why, pairs, method, further_tests, effects, undefined)


def _with_test_of_pairs(
    found: Comparison, of_pair: SignificanceResult, by_ranks: SignificanceResult, variances: str
) -> Comparison:
    """Replace the test of a comparison by one that is corrected for all pairs."""
    if of_pair.statistic is None and by_ranks.statistic is not None:
        return replace(found, test=by_ranks, why=f"{variances}, but {NO_VARIANCE}.")
    why = f"{variances}, so that the {of_pair.method} test of all pairs is used."
    return replace(found, test=of_pair, why=why, further_tests=(*found.further_tests, by_ranks))


def _overall_unpaired(
    arrays: Sequence[Array], unequal: bool, variances: str
) -> tuple[SignificanceResult, str, tuple[SignificanceResult, ...]]:
    """Return the test whether any two arrays differ, the reason for it, and further tests."""
    test, over_ranks = welch_anova(arrays) if unequal else anova(arrays), kruskal(arrays)
    if test.statistic is None and over_ranks.statistic is not None:
        why = (
            "The items are not the same, and all scores of an evaluation are equal, so that an "
            "analysis of variance is not defined."
        )
        return over_ranks, why, ()
    return test, f"{variances}.", (over_ranks,)


def _check_many(scores: Mapping[str, Scores]) -> None:
    if len(scores) < 3:
        raise DataError(
            f"{count(len(scores), 'evaluation')}: three or more are compared at once; for two, use "
            "compare_paired or compare_unpaired"
        )


def with_correction(
    comparisons: Sequence[Comparison], method: Correction = "holm"
) -> tuple[Comparison, ...]:
    """Correct the p-values of comparisons that are shown together, and decide each again."""
    corrected = correct([comparison.test.p_value for comparison in comparisons], method)
    pairs = zip(comparisons, corrected.tolist(), strict=True)
    return tuple(decide(comparison, p) for comparison, p in pairs)


def decide(comparison: Comparison, p_corrected: float) -> Comparison:
    """Return the comparison with its verdict, given the corrected p-value.

    "same" needs the interval of confidence 1 - 2 alpha within the margin, which is two one-sided
    tests. "better" and "worse" need p of at most alpha, and an interval without 0.
    """
    difference, alpha = comparison.difference, comparison.criteria.alpha
    verdict: Verdict = "cannot tell"
    p = format_p(p_corrected)
    if p_corrected != comparison.test.p_value:
        p = f"Corrected {p}"
    if not difference.known:
        reason = f"The difference has no interval: {difference.why}."
    elif _within_margin(comparison):
        verdict, reason = "same", "The difference lies within the margin (two one-sided tests)."
        if p_corrected <= alpha:
            reason += " It is not 0, but too small to matter."
    elif p_corrected > alpha:
        reason = f"{p} is above {alpha:g}."
    elif difference.low <= 0 <= difference.high:
        reason = f"{p}, but the interval of the difference contains 0."
    elif comparison.by_seeds is not None and not _seeds_agree(comparison):
        reason = "With items and seeds crossed there is a difference, but not by seeds alone."
    else:
        is_better = (difference.estimate > 0) != comparison.criteria.measure.lower_is_better
        verdict = "better" if is_better else "worse"
        reason = f"{p}, and the interval of the difference does not contain 0."
    return replace(comparison, p_corrected=p_corrected, verdict=verdict, reason=reason)


def _within_margin(comparison: Comparison) -> bool:
    inner, margin = comparison.equivalence, comparison.criteria.margin
    return inner is not None and margin is not None and -margin < inner.low <= inner.high < margin


def _seeds_agree(comparison: Comparison) -> bool:
    seeds, test = comparison.by_seeds, comparison.by_seeds_test
    if seeds is None or test is None or test.p_value > comparison.criteria.alpha:
        return False
    return seeds.low > 0 or seeds.high < 0


def _effects(
    computations: Mapping[str, Callable[[], Interval]],
) -> tuple[dict[str, Interval], dict[str, str]]:
    """Return effect sizes, and of those that the data does not define the reason, by name."""
    effects, undefined = {}, {}
    for name, compute in computations.items():
        try:
            effects[name] = compute()
        except DataError as error:
            undefined[name] = str(error)
    return effects, undefined

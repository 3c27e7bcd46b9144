"""Intervals against published values, closed forms and simulation."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep

from kitchen.errors import ConfigError, DataError
from kitchen.statistics.intervals import (
    bca_bootstrap,
    clopper_pearson,
    interval,
    mean_interval,
    newcombe_paired,
    newcombe_unpaired,
    paired_interval,
    pass_at,
    ratio_interval,
    wilson,
)
from kitchen.statistics.samples import NON_NEGATIVE, UNBOUNDED, Ratio


@pytest.mark.parametrize(
    "successes, n, low, high",
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_matches_published_values(successes, n, low, high):
    """Newcombe, 1998, Statistics in Medicine 17:857-872, table I, method 3."""
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(
    st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.floats(0.5, 0.999),
)
def test_wilson_bounds_are_accepted_by_the_score_test(counts, confidence):
    successes, n = counts
    low, high = wilson(successes, n, confidence)
    assert 0.0 <= low <= successes / n <= high <= 1.0
    mirrored = wilson(n - successes, n, confidence)
    assert (low, high) == pytest.approx((1 - mirrored[1], 1 - mirrored[0]), abs=1e-12)
    for end in (low, high):
        if 0 < end < 1:
            z = abs(successes / n - end) / math.sqrt(end * (1 - end) / n)
            assert math.erf(z / math.sqrt(2)) == pytest.approx(confidence, abs=1e-6)


@pytest.mark.parametrize(
    "successes, n, low, high",
    [
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (0, 20, 0, 0.1684),
        (1, 29, 9e-4, 0.1776),
    ],
)
def test_clopper_pearson_matches_published_values(successes, n, low, high):
    """Newcombe, 1998, Statistics in Medicine 17:857-872, table I, method 5."""
    found = clopper_pearson(successes, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize("n", [20, 37, 100])
def test_clopper_pearson_always_covers_95_percent(n):
    """Exact, at all shares; Wilson's interval covers 84 % at a share of 0.18 / n."""
    successes = np.arange(n + 1)
    found = [clopper_pearson(int(number), n) for number in successes]
    low, high = np.array([(each.low, each.high) for each in found]).T
    shares = np.concatenate([np.geomspace(1e-5, 0.02, 100), np.linspace(0.02, 0.5, 200)])
    chances = stats.binom.pmf(successes, n, shares[:, None])
    covered = (low <= shares[:, None]) & (shares[:, None] <= high)
    assert (chances * covered).sum(axis=1).min() >= 0.95


def table(
    both: int, only_first: int, only_second: int, neither: int
) -> tuple[list[int], list[int]]:
    first = [1] * (both + only_first) + [0] * (only_second + neither)
    second = [1] * both + [0] * only_first + [1] * only_second + [0] * neither
    return first, second


def newcombe_by_hand(both: int, first: int, second: int, neither: int) -> tuple[float, float]:
    """Return method 10 as Newcombe writes it, with the first share minus the second."""
    n = both + first + second + neither
    share_first, share_second = (both + first) / n, (both + second) / n
    (l1, u1), (l2, u2) = wilson(both + first, n), wilson(both + second, n)
    d_l1, d_u1 = share_first - l1, u1 - share_first
    d_l2, d_u2 = share_second - l2, u2 - share_second
    a, bc = both * neither, first * second
    product = (both + first) * (second + neither) * (both + second) * (first + neither)
    top = max(a - bc - n / 2, 0) if a > bc else a - bc
    phi = top / math.sqrt(product) if product else 0
    low = math.sqrt(d_l1**2 - 2 * phi * d_l1 * d_u2 + d_u2**2)
    high = math.sqrt(d_u1**2 - 2 * phi * d_u1 * d_l2 + d_l2**2)
    return share_first - share_second - low, share_first - share_second + high


@given(st.tuples(*[st.integers(0, 60)] * 4).filter(sum))
def test_newcombe_paired_matches_his_formula(cells):
    first, second = table(*cells)
    found = newcombe_paired(second, first)
    assert (found.low, found.high) == pytest.approx(newcombe_by_hand(*cells), abs=1e-12)
    assert -1 <= found.low <= found.estimate <= found.high <= 1
    swapped = newcombe_paired(first, second)
    assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low), abs=1e-12)


def test_equal_shares_have_an_interval():
    found = newcombe_paired([0] * 200, [0] * 200)
    assert (found.low, found.high) == pytest.approx((-wilson(0, 200)[1], wilson(0, 200)[1]))


def test_newcombe_unpaired_matches_statsmodels():
    first, second = [1] * 56 + [0] * 14, [1] * 48 + [0] * 32
    found = newcombe_unpaired(second, first)
    other = confint_proportions_2indep(56, 70, 48, 80, method="newcomb")
    assert (found.low, found.high) == pytest.approx(other, abs=1e-9)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)  # Newcombe, 1998


def test_bootstrap_matches_the_t_interval_of_symmetric_scores():
    values = np.random.default_rng(0).normal(3, 2, 400)
    found, t = bca_bootstrap(Ratio.of(values)), mean_interval(values)
    assert found.estimate == pytest.approx(values.mean(), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((t.low, t.high), abs=0.04)


def test_bca_matches_scipy_up_to_the_wider_quantiles():
    values = np.random.default_rng(1).exponential(size=150)
    found = bca_bootstrap(Ratio.of(values), resamples=20_000)
    z = math.sqrt(150 / 149) * float(stats.t.ppf(0.975, 149))
    level = 2 * float(stats.norm.cdf(z)) - 1
    other = stats.bootstrap(
        [values], np.mean, n_resamples=20_000, confidence_level=level, rng=0
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.01)


def test_ratio_interval_matches_the_delta_method():
    random = np.random.default_rng(4)
    sizes = random.integers(1, 30, size=1_000).astype(float)
    parts = sizes * 0.7 + random.normal(size=1_000)
    found = interval(parts, sizes, bounds=UNBOUNDED)
    ratio = parts.sum() / sizes.sum()
    error = np.std(parts - ratio * sizes) / sizes.mean() / math.sqrt(1_000)
    assert found.estimate == pytest.approx(ratio, rel=1e-12)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.05)
    assert interval(parts, np.ones(1_000), bounds=UNBOUNDED) == interval(parts, bounds=UNBOUNDED)


def test_difference_of_ratios_allows_other_sizes():
    random = np.random.default_rng(4)
    sizes, other_sizes = random.integers(5, 30, size=(2, 60)).astype(float)
    first, second = sizes * random.random(60), other_sizes * random.random(60)
    found = ratio_interval(Ratio.difference(first, second, sizes, other_sizes))
    estimate = second.sum() / other_sizes.sum() - first.sum() / sizes.sum()
    assert found.estimate == pytest.approx(estimate, abs=1e-12)
    assert found.low < estimate < found.high
    values = Ratio.difference(first, second, sizes, other_sizes).pseudo_values()
    assert values.mean() == pytest.approx(estimate, abs=1e-12)


def test_intervals_do_not_depend_on_a_random_state():
    values = np.random.default_rng(2).random(50)
    np.random.seed(1)
    assert interval(values) == interval(values.tolist())


def test_clusters_of_equal_items_count_once():
    random = np.random.default_rng(0)
    values = (random.random(200) < 0.6).astype(float)
    single = interval(values, clusters=np.arange(200))
    plain = interval(values)
    assert (single.low, single.high) == pytest.approx((plain.low, plain.high), abs=2e-3)
    repeated = np.repeat(values, 10)
    found = interval(repeated, clusters=np.repeat(np.arange(200), 10))
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=2e-3)
    assert (found.n, found.method) == (2_000, "Korn-Graubard")
    means = interval(repeated / 2, clusters=np.repeat(np.arange(200), 10))
    assert means == replace(interval(values / 2), n=2_000, why=means.why)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_cluster_share_of_0_or_1_counts_clusters(share):
    found = interval([share] * 60, clusters=[number // 6 for number in range(60)])
    plain = clopper_pearson(10 * share, 10)
    assert (found.low, found.high) == (plain.low, plain.high)


@pytest.mark.parametrize("tries, right", [(1, 0), (1, 1), (5, 0), (5, 2), (5, 5), (6, 3)])
def test_pass_at_k_matches_enumeration(tries, right):
    for k in range(1, tries + 1):
        choices = list(combinations([True] * right + [False] * (tries - right), k))
        assert pass_at(k, tries, right) == pytest.approx(sum(map(any, choices)) / len(choices))
    assert pass_at(1, tries, right) == pytest.approx(right / tries)


def test_pass_at_k_is_unbiased_unlike_the_plain_formula():
    random, k, tries, chance = np.random.default_rng(3), 4, 6, 0.2
    rights = random.binomial(tries, chance, 20_000)
    truth = 1 - (1 - chance) ** k
    assert np.mean([pass_at(k, tries, int(c)) for c in rights]) == pytest.approx(truth, abs=0.01)
    assert abs(np.mean(1 - (1 - rights / tries) ** k) - truth) > 0.03


def test_pass_at_k_of_many_tries_is_finite():
    assert pass_at(1_000, 3_000, 3) == pytest.approx(1 - (2 / 3) ** 3, abs=1e-3)


def test_interval_depends_on_the_scores():
    binary = interval([1.0] * 8 + [0.0] * 2)
    assert binary == replace(clopper_pearson(8, 10), why=binary.why)
    few = [0.5, 0.25, 1.0, 0.0, 0.75]
    t = mean_interval(few, bounds=(0, 1))
    assert (interval(few).low, interval(few).high, interval(few).method) == (t.low, t.high, "t")
    assert interval([*few] * 4).method == "BCa bootstrap"


def test_equal_scores_have_an_interval_within_bounds():
    found = interval([0.5] * 10)
    assert (found.estimate, found.low, found.high) == pytest.approx((0.5, 0.3458, 0.6542), abs=5e-5)
    assert interval([0.5]).high == pytest.approx(0.9875)
    unknown = interval([2.0] * 10, bounds=NON_NEGATIVE)
    assert (unknown.low, unknown.high, unknown.known) == (-math.inf, math.inf, False)
    assert unknown.format() == "2.000 [no interval]"
    assert "no bounds" in unknown.why


def test_rare_scores_widen_the_interval():
    scores = [1.0] * 97 + [0.5] * 3
    assert interval(scores).low < clopper_pearson(100, 100).low
    assert interval([0.2, 0.9] * 50).method == "BCa bootstrap"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_interval_contains_the_mean_and_stays_in_bounds(values, confidence):
    found = interval(values, confidence=confidence)
    assert 0 <= found.low <= found.high <= 1
    assert found.low - 1e-12 <= np.mean(values) <= found.high + 1e-12
    pairs = paired_interval(values, values[::-1], confidence=confidence)
    assert -1 <= pairs.low <= pairs.estimate <= pairs.high <= 1


def test_intervals_over_problems_cover_correlated_tries():
    """With 40 problems solved always or never, 8 tries at each tell no more than one."""
    random, runs, truth, hits, narrow = np.random.default_rng(5), 100, 0.5, 0, 0
    for _ in range(runs):
        chances = random.beta(0.2, 0.2, 40)
        tries = random.random((40, 8)) < chances[:, None]
        found = interval(tries.mean(axis=1))
        low, high = wilson(int(tries.sum()), tries.size)  # as if the tries were so many problems
        hits, narrow = hits + (found.low <= truth <= found.high), narrow + (low <= truth <= high)
    assert hits / runs > 0.90
    assert narrow / runs < 0.75


@pytest.mark.parametrize(
    "call",
    [
        lambda: pass_at(0, 3, 1),
        lambda: pass_at(4, 3, 1),
        lambda: pass_at(1, 3, 4),
        lambda: pass_at(1, 3, -1),
        lambda: interval([]),
        lambda: interval([math.nan, 1.0]),
        lambda: interval([0.5, 1.5]),
        lambda: interval([[0.5]]),
        lambda: interval(["a"]),
        lambda: wilson(0, 0),
        lambda: wilson(3, 2),
        lambda: wilson(-1, 2),
        lambda: clopper_pearson(3, 2),
        lambda: clopper_pearson(0, math.inf),
        lambda: paired_interval([], []),
        lambda: paired_interval([1.0], [1.0, 0.0]),
        lambda: paired_interval([1.0], [math.inf]),
        lambda: newcombe_paired([0.5], [1]),
        lambda: interval([1.0], [0.0]),
        lambda: interval([1.0], [1.0, 1.0]),
        lambda: interval([1.0, 0.0], clusters=[1]),
        lambda: mean_interval([1.0]),
        lambda: bca_bootstrap(Ratio.of([1.0, 1.0])),
    ],
)
def test_invalid_input_is_an_error(call):
    with pytest.raises(DataError):
        call()


@pytest.mark.parametrize("confidence", [0.0, 1.0, math.nan, 95])
def test_confidence_must_be_a_probability(confidence):
    with pytest.raises(ConfigError, match="confidence"):
        interval([0.0, 1.0], confidence=confidence)
    with pytest.raises(ConfigError, match="confidence"):
        wilson(1, 2, confidence)


@pytest.mark.parametrize(
    "n, t", [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (11, 2.228), (31, 2.042)]
)
def test_mean_interval_matches_tables_of_student_s_t(n, t):
    values = np.random.default_rng(n).normal(3, 2, n)
    found = mean_interval(values.tolist())
    half = t * values.std(ddof=1) / math.sqrt(n)
    assert found.estimate == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=4e-4)

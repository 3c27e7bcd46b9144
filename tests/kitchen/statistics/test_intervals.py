"""Intervals against published values, closed forms and simulation."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchen.statistics.intervals import (
    interval,
    mean_interval,
    paired_bootstrap,
    pass_at,
    ratio_bootstrap,
    wilson,
)


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


def test_bootstrap_coverage_is_nominal():
    random, runs, n = np.random.default_rng(7), 300, 80
    hits = 0
    for run in range(runs):
        before = random.random(n) < 0.3
        # so the scores are paired; the true gain is 0.7 * 0.4
        after = before | (random.random(n) < 0.4)
        found = paired_bootstrap(before, after, seed=run, resamples=1_000)
        hits += found.low <= 0.28 <= found.high
    # 3 standard errors around 0.94, its known shortfall at this n included
    assert 0.90 <= hits / runs <= 0.985


def test_bootstrap_matches_the_normal_interval_for_large_n():
    random = np.random.default_rng(0)
    before, after = random.normal(0, 1, 5_000), random.normal(0.5, 1, 5_000)
    found = paired_bootstrap(before, after, seed=1, confidence=0.9)
    half = 1.6449 * (after - before).std() / math.sqrt(5_000)
    assert found.estimate == pytest.approx((after - before).mean(), abs=1e-12)
    assert (found.low, found.high) == pytest.approx(
        (found.estimate - half, found.estimate + half), abs=0.05 * half
    )


def test_constant_paired_gain_has_no_width():
    before = np.random.default_rng(0).random(50)
    found = paired_bootstrap(before, before + 0.25, seed=0)
    assert (found.low, found.estimate, found.high) == pytest.approx((0.25, 0.25, 0.25), abs=1e-12)


def test_ratio_bootstrap_matches_the_delta_method():
    random = np.random.default_rng(4)
    sizes = random.integers(1, 30, size=4_000).astype(float)
    parts = sizes * 0.7 + random.normal(size=4_000)
    found = ratio_bootstrap(parts, sizes, seed=1)
    ratio = parts.sum() / sizes.sum()
    error = np.std(parts - ratio * sizes) / sizes.mean() / math.sqrt(4_000)
    assert found.estimate == pytest.approx(ratio, rel=1e-12)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.05)
    assert found.low < 0.7 < found.high
    assert ratio_bootstrap(parts, np.ones(4_000), 1) == paired_bootstrap(np.zeros(4_000), parts, 1)


def test_seed_determines_the_bootstrap():
    before, after = np.zeros(30), np.arange(30) % 3
    assert paired_bootstrap(before, after, 5) == paired_bootstrap(before, after, 5)
    assert len({paired_bootstrap(before, after, seed, resamples=101).low for seed in range(9)}) > 1


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


def test_interval_is_wilsons_for_binary_scores_else_bootstrap():
    assert (
        interval([1.0] * 8 + [0.0] * 2, 0).low,
        interval([1.0] * 8 + [0.0] * 2, 0).high,
    ) == wilson(8, 10)
    assert interval([1.0] * 4, 0).low == pytest.approx(4 / (4 + 1.96**2), abs=1e-3)
    values = [0.5, 0.25, 1.0, 0.0, 0.75]
    assert interval(values, 3) == paired_bootstrap([0.0] * 5, values, 3)


def test_intervals_over_problems_cover_correlated_tries():
    """With 40 problems solved always or never, 8 tries at each tell no more than one."""
    random, runs, truth, hits, narrow = np.random.default_rng(5), 300, 0.5, 0, 0
    for run in range(runs):
        chances = random.beta(0.2, 0.2, 40)
        tries = random.random((40, 8)) < chances[:, None]
        found = interval(tries.mean(axis=1).tolist(), run)
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
        lambda: interval([], 0),
        lambda: interval([math.nan, 1.0], 0),
        lambda: wilson(0, 0),
        lambda: wilson(3, 2),
        lambda: wilson(-1, 2),
        lambda: wilson(1, 2, 1.0),
        lambda: paired_bootstrap([], [], 0),
        lambda: paired_bootstrap([1.0], [1.0, 2.0], 0),
        lambda: paired_bootstrap([1.0], [math.nan], 0),
        lambda: paired_bootstrap([1.0], [1.0], 0, resamples=0),
        lambda: ratio_bootstrap([1.0], [0.0], 0),
        lambda: ratio_bootstrap([1.0], [1.0, 1.0], 0),
        lambda: paired_bootstrap([[1.0]], [[1.0]], 0),
        lambda: paired_bootstrap([1.0], [1.0], 0, confidence=0.0),
    ],
)
def test_invalid_input_is_an_error(call):
    with pytest.raises(ValueError, match=r"\d"):
        call()


@pytest.mark.parametrize(
    "n, t", [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (11, 2.228), (31, 2.042)]
)
def test_mean_interval_matches_tables_of_student_s_t(n, t):
    values = np.random.default_rng(n).normal(3, 2, n)
    found = mean_interval(values.tolist())
    half = t * values.std(ddof=1) / math.sqrt(n)
    assert found.estimate == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=4e-4)


def test_one_value_has_no_interval():
    with pytest.raises(ValueError, match="at least two"):
        mean_interval([1.0])

"""Tests of significance against published values, enumeration and other libraries."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.weightstats import ttost_ind, ttost_paired

from kitchen.errors import ConfigError, DataError
from kitchen.statistics.significance import (
    fisher_exact,
    format_p,
    mann_whitney,
    mcnemar,
    paired_t,
    sign_flip,
    tost,
    welch,
    wilcoxon,
)

# Darwin's maize, 15 pairs (Fisher, 1935, The Design of Experiments, ch. 21)
GAINS = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
PAIRED = [mcnemar, sign_flip, wilcoxon, paired_t]
UNPAIRED = [fisher_exact, mann_whitney, welch]
BITS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def test_sign_flips_of_few_items_are_enumerated():
    """Fisher: 1,726 of the 2^15 sign flips are as far from 0."""
    found = sign_flip([0] * 15, GAINS)
    assert found.p_value == 1726 / 2**15
    assert sign_flip(GAINS, [0] * 15).p_value == found.p_value
    assert found.statistic == pytest.approx(np.mean(GAINS))


def test_sign_flips_of_many_items_are_drawn():
    gains = [*GAINS, 1, 2]
    signs = 1 - 2 * (np.arange(2**17)[:, None] >> np.arange(17) & 1)
    exact = (abs(signs @ gains) >= abs(sum(gains))).mean()
    found = sign_flip([0] * 17, gains, resamples=40_000)
    assert found.p_value == pytest.approx(exact, abs=0.005)
    assert found.p_value == sign_flip([0] * 17, gains, resamples=40_000).p_value


def test_smallest_p_of_drawn_sign_flips_is_above_0():
    assert sign_flip(np.zeros(100), np.ones(100), resamples=999).p_value == 1 / 1000


def test_losses_of_other_sizes_are_exchanged_with_their_sizes():
    first, second = [1.0, 4.0, 2.0], [2.0, 5.0, 6.0]
    sizes, other_sizes = [2.0, 3.0, 4.0], [1.0, 3.0, 5.0]
    observed = sum(second) / sum(other_sizes) - sum(first) / sum(sizes)
    extreme = 0
    for swaps in product((False, True), repeat=3):
        ones, others = np.zeros(2), np.zeros(2)
        for at, swap in enumerate(swaps):
            pair = [(first[at], sizes[at]), (second[at], other_sizes[at])]
            ones += pair[swap]
            others += pair[not swap]
        difference = others[0] / others[1] - ones[0] / ones[1]
        extreme += abs(difference) >= abs(observed) - 1e-12
    assert sign_flip(first, second, sizes, other_sizes).p_value == extreme / 8


def test_items_of_a_cluster_are_exchanged_together():
    scores = np.random.default_rng(0).random((2, 12))
    clusters = np.repeat(["a", "b", "c", "d"], 3)
    sums = scores.reshape(2, 4, 3).sum(axis=2)
    assert sign_flip(*scores, clusters=clusters).p_value == sign_flip(*sums).p_value


@given(BITS, st.randoms())
@settings(max_examples=40, deadline=None)
def test_mcnemar_matches_statsmodels(first, random):
    second = [random.choice((0, 1)) for _ in first]
    cells = np.zeros((2, 2))
    for pair in zip(first, second, strict=True):
        cells[pair] += 1
    expected = float(statsmodels_mcnemar(cells, exact=True).pvalue)
    found = mcnemar(first, second)
    assert found.p_value == pytest.approx(min(expected, 1.0), abs=1e-9)
    only_first, only_second = cells[1, 0], cells[0, 1]
    n = only_first + only_second
    mid = 2 * stats.binom.cdf(min(only_first, only_second), n, 0.5) - stats.binom.pmf(
        only_first, n, 0.5
    )
    assert mcnemar(first, second, mid_p=True).p_value == pytest.approx(min(mid, 1.0), abs=1e-9)


def test_mcnemar_equals_the_sign_flips_of_binary_scores():
    first, second = np.random.default_rng(1).integers(2, size=(2, 14))
    assert mcnemar(first, second).p_value == pytest.approx(sign_flip(first, second).p_value)


@given(BITS, BITS)
@settings(max_examples=40, deadline=None)
def test_fisher_matches_scipy(first, second):
    cells = [[sum(first), len(first) - sum(first)], [sum(second), len(second) - sum(second)]]
    found = fisher_exact(first, second)
    assert found.p_value == pytest.approx(stats.fisher_exact(cells).pvalue, abs=1e-9)
    assert fisher_exact(first, second, mid_p=True).p_value <= found.p_value


def test_tost_matches_statsmodels():
    random = np.random.default_rng(0)
    first = random.normal(size=40)
    second = first + random.normal(0.05, 0.3, 40)
    expected = ttost_paired(second, first, -0.2, 0.2)[0]
    assert tost(first, second, 0.2).p_value == pytest.approx(expected, abs=1e-9)
    other = random.normal(size=30)
    expected = ttost_ind(other, first, -0.6, 0.6, usevar="unequal")[0]
    found = tost(first, other, 0.6, paired=False)
    assert found.p_value == pytest.approx(expected, abs=1e-9)


SCORES = st.lists(st.floats(-5, 5, width=16), min_size=1, max_size=24)


@given(SCORES, st.randoms())
@settings(max_examples=50, deadline=None)
@pytest.mark.parametrize("test", [sign_flip, wilcoxon, paired_t, mann_whitney, welch])
def test_p_values_are_probabilities_and_symmetric(test, first, random):
    second = random.sample(first, len(first))
    found = test(first, second)
    assert 0 < found.p_value <= 1
    assert test(second, first).p_value == pytest.approx(found.p_value, abs=0.02)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scores", [[0], [1], [0, 0], [1] * 30])
@pytest.mark.parametrize("test", [*PAIRED, *UNPAIRED])
def test_equal_scores_do_not_differ(test, scores):
    assert test(scores, scores).p_value == 1.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("test", [sign_flip, paired_t, welch, mann_whitney, wilcoxon])
def test_one_item_shows_nothing(test):
    assert test([0.2], [0.7]).p_value == 1.0


@pytest.mark.parametrize(
    "first, second", [([], []), ([0, math.nan], [0, 1]), ([0, 1], [0, math.inf]), ([[0]], [[1]])]
)
@pytest.mark.parametrize("test", [*PAIRED, *UNPAIRED])
def test_scores_must_be_finite_numbers(test, first, second):
    with pytest.raises(DataError):
        test(first, second)


@pytest.mark.parametrize("test", PAIRED)
def test_paired_tests_need_the_same_items(test):
    with pytest.raises(DataError, match="the same items"):
        test([0, 1], [0, 1, 1])


@pytest.mark.parametrize("test", [mcnemar, fisher_exact])
def test_shares_need_scores_of_0_and_1(test):
    with pytest.raises(DataError, match="0 and 1"):
        test([0.5, 1], [0, 1])


@pytest.mark.parametrize("margin", [0, -0.1, math.nan, math.inf])
def test_margin_must_be_above_0(margin):
    with pytest.raises(ConfigError, match="margin"):
        tost([0, 1], [1, 1], margin)


@pytest.mark.parametrize("score", [0.0, 1.0])
@pytest.mark.parametrize("test", [fisher_exact, mcnemar])
def test_mid_p_of_equal_scores_is_1(test, score):
    assert test([score] * 20, [score] * 20, mid_p=True).p_value == 1


@pytest.mark.parametrize("p, text", [(0.0, "p < 1e-10"), (4e-5, "p = 4e-05"), (1.0, "p = 1")])
def test_p_value_is_never_printed_as_0(p, text):
    assert format_p(p) == text

"""Effect sizes against enumeration, simulation and noncentral distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kitchen.errors import DataError
from kitchen.statistics.effects import (
    cliffs_delta,
    cohens_d,
    cohens_dz,
    cohens_h,
    design_effect,
    discordant_odds_ratio,
    epsilon_squared,
    eta_squared,
    hedges_g,
    standard_deviation,
)

RANDOM = np.random.default_rng(5)
FIRST, SECOND = RANDOM.normal(0, 1, 30), RANDOM.normal(0.4, 1, 30)


def test_cliffs_delta_counts_pairs_of_scores():
    first, second = np.round(FIRST, 1), np.round(SECOND[:20], 1)
    expected = np.sign(second[:, None] - first).mean()
    assert cliffs_delta(first, second).estimate == pytest.approx(expected, abs=1e-12)


@given(
    st.lists(st.floats(-3, 3, width=16), min_size=1, max_size=20),
    st.lists(st.floats(-3, 3, width=16), min_size=1, max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_cliffs_delta_is_antisymmetric_and_bounded(first, second):
    found, swapped = cliffs_delta(first, second), cliffs_delta(second, first)
    assert -1 <= found.low <= found.estimate <= found.high <= 1
    ends = (-swapped.estimate, -swapped.high, -swapped.low)
    assert (found.estimate, found.low, found.high) == pytest.approx(ends, abs=1e-9)


@pytest.mark.parametrize("paired", [True, False])
def test_cliffs_delta_of_separate_scores_has_an_interval(paired):
    found = cliffs_delta([1, 2, 3, 4], [5, 6, 7, 8], paired=paired)
    assert (found.estimate, found.high) == (1.0, 1.0)
    assert found.low < 0.5


@pytest.mark.parametrize("paired", [True, False])
def test_cliffs_delta_covers_the_truth(paired):
    truth = 2 * stats.norm.cdf(0.5 / math.sqrt(2)) - 1
    random, hits = np.random.default_rng(0), 0
    for _ in range(400):
        noise = random.normal(size=(2, 40))
        first, second = noise[0], 0.5 + noise[1]
        found = cliffs_delta(first, second, paired=paired)
        hits += found.low <= truth <= found.high
    assert hits / 400 >= 0.93


def test_standardised_differences_invert_noncentral_t():
    found = cohens_dz(FIRST, SECOND)
    t = found.estimate * math.sqrt(30)
    assert stats.nct.sf(t, 29, found.low * math.sqrt(30)) == pytest.approx(0.025, abs=1e-8)
    assert stats.nct.cdf(t, 29, found.high * math.sqrt(30)) == pytest.approx(0.025, abs=1e-8)
    g, d = hedges_g(FIRST, SECOND), cohens_d(FIRST, SECOND)
    assert g.estimate == pytest.approx(d * (1 - 3 / (4 * 58 - 1)), abs=1e-4)
    scale = math.sqrt(15) * d / g.estimate
    assert stats.nct.sf(d * math.sqrt(15), 58, g.low * scale) == pytest.approx(0.025, abs=1e-8)


def test_odds_ratio_has_an_exact_interval():
    first, second = [1] * 5 + [0] * 15, [0] * 5 + [1] * 15
    found = discordant_odds_ratio(first, second)
    exact = stats.binomtest(15, 20).proportion_ci()
    assert found.estimate == pytest.approx(3)
    expected = exact.low / (1 - exact.low), exact.high / (1 - exact.high)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-9)
    assert discordant_odds_ratio([0] * 6, [1] * 6).high == math.inf


def test_cohens_h_of_shares():
    first, second = [1] * 5 + [0] * 5, [1] * 9 + [0]
    found = cohens_h(first, second)
    expected = 2 * math.asin(math.sqrt(0.9)) - 2 * math.asin(math.sqrt(0.5))
    assert found.estimate == pytest.approx(expected)
    assert found.high - found.low == pytest.approx(2 * 1.959964 * math.sqrt(0.2), abs=1e-5)


def test_shares_of_variance_invert_noncentral_distributions():
    groups = [FIRST, SECOND, SECOND + 0.3]
    eta, epsilon = eta_squared(groups), epsilon_squared(groups)
    f, n = stats.f_oneway(*groups).statistic, 90
    for end, tail in ((eta.low, 0.975), (eta.high, 0.025)):
        noncentrality = end * n / (1 - end)
        assert stats.ncf.cdf(f, 2, 87, noncentrality) == pytest.approx(tail, abs=1e-7)
    assert epsilon.estimate == pytest.approx(stats.kruskal(*groups).statistic / 89)
    assert 0 <= epsilon.low <= epsilon.estimate <= epsilon.high <= 1
    assert eta_squared([FIRST, FIRST]).low == 0.0


def test_design_effect_of_repeated_items_is_their_number():
    found = design_effect(np.repeat(FIRST, 4), np.repeat(np.arange(30), 4))
    # the variance of 30 items is divided by 29, and that of the 120 repeated ones by 119
    assert found.estimate == pytest.approx(4 * 119 / 116)
    assert design_effect(FIRST, np.arange(30)).estimate == pytest.approx(1)
    assert found.low < found.estimate < found.high


def test_standard_deviation_has_the_chi_square_interval():
    found = standard_deviation([1.0, 2.0, 3.0])
    assert (found.estimate, found.low, found.high) == pytest.approx((1, 0.5207, 6.2847), abs=1e-4)
    assert standard_deviation([1.0, 1.0]).high == math.inf


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "call",
    [
        lambda: cohens_dz([1.0], [2.0]),
        lambda: cohens_dz([1.0, 2.0], [2.0, 3.0]),
        lambda: cohens_d([1.0, 1.0], [2.0, 2.0]),
        lambda: hedges_g([1.0], [2.0]),
        lambda: discordant_odds_ratio([1, 0], [1, 0]),
        lambda: design_effect([1.0, 1.0], [0, 1]),
        lambda: design_effect([1.0, 2.0], [0, 0]),
        lambda: eta_squared([[1.0, 1.0], [2.0, 2.0]]),
        lambda: epsilon_squared([[1.0, 1.0], [1.0, 1.0]]),
        lambda: eta_squared([[1.0, 1.0 + 1e-9], [2.0, 2.0]]),
        lambda: standard_deviation([1.0]),
        lambda: cohens_h([0.5], [1.0, math.nan]),
    ],
)
def test_undefined_effect_size_is_an_error(call):
    with pytest.raises(DataError):
        call()


def test_eta_squared_of_many_scores_has_an_interval():
    # scipy's noncentral F distribution is NaN far in the tails of this statistic
    groups = [np.arange(101) < right for right in (100, 32, 78, 92, 37)]
    found = eta_squared([group.astype(float) for group in groups])
    assert 0 < found.low < found.estimate < found.high < 1

"""Tests of three or more groups against scipy, statsmodels and scikit-posthocs."""

from __future__ import annotations

import numpy as np
import pytest
import scikit_posthocs
from scipy import stats
from statsmodels.stats.contingency_tables import cochrans_q
from statsmodels.stats.oneway import anova_oneway

from kitchen.errors import DataError
from kitchen.statistics.groups import (
    anova,
    bartlett,
    cochran_q,
    dunn,
    fligner,
    friedman,
    games_howell,
    kruskal,
    shapiro,
    tukey,
    welch_anova,
)

RANDOM = np.random.default_rng(3)
GROUPS = [RANDOM.normal(mean, sd, n) for mean, sd, n in ((0, 1, 12), (0.5, 2, 20), (1, 1, 15))]
TIED = [np.round(group) for group in GROUPS]
UNPAIRED = [anova, welch_anova, kruskal, fligner, bartlett]
PAIRWISE = [tukey, games_howell, dunn]


def test_cochran_matches_statsmodels():
    scores = RANDOM.integers(2, size=(4, 30))
    expected = cochrans_q(scores.T)
    found = cochran_q(scores)
    assert (found.statistic, found.p_value) == pytest.approx(
        (expected.statistic, expected.pvalue), abs=1e-9
    )


def test_friedman_matches_scipy_with_ties():
    scores = RANDOM.integers(4, size=(3, 25))
    expected = stats.friedmanchisquare(*scores)
    found = friedman(scores)
    assert (found.statistic, found.p_value) == pytest.approx(tuple(expected), abs=1e-9)


@pytest.mark.parametrize("groups", [GROUPS, TIED])
def test_kruskal_matches_scipy(groups):
    found = kruskal(groups)
    assert (found.statistic, found.p_value) == pytest.approx(
        tuple(stats.kruskal(*groups)), abs=1e-9
    )


@pytest.mark.parametrize("test, variances", [(anova, "equal"), (welch_anova, "unequal")])
def test_anova_matches_statsmodels(test, variances):
    expected = anova_oneway(GROUPS, use_var=variances, welch_correction=True)
    found = test(GROUPS)
    assert (found.statistic, found.p_value) == pytest.approx(
        (expected.statistic, expected.pvalue), abs=1e-9
    )


def pairs(matrix) -> list[float]:
    return [matrix.iloc[0, 1], matrix.iloc[0, 2], matrix.iloc[1, 2]]


def test_games_howell_matches_an_independent_formula():
    """`scipy.stats.tukey_hsd` with unequal variances is the test of Games and Howell."""
    expected = stats.tukey_hsd(*GROUPS, equal_var=False).pvalue
    found = [games_howell(GROUPS)[pair].p_value for pair in ((0, 1), (0, 2), (1, 2))]
    assert found == pytest.approx([expected[0, 1], expected[0, 2], expected[1, 2]], abs=1e-9)


def test_tukey_matches_scikit_posthocs():
    found = [pair.p_value for pair in tukey(GROUPS).values()]
    assert found == pytest.approx(pairs(scikit_posthocs.posthoc_tukey(GROUPS)), abs=1e-6)


@pytest.mark.parametrize("groups", [GROUPS, TIED])
def test_dunn_matches_scikit_posthocs(groups):
    found = [pair.p_value for pair in dunn(groups).values()]
    assert found == pytest.approx(pairs(scikit_posthocs.posthoc_dunn(groups)), abs=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("test", [*UNPAIRED, cochran_q, friedman])
def test_equal_groups_do_not_differ(test):
    found = test([[1, 1, 1]] * 3)
    assert found.p_value == 1.0
    assert found.why


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("test", PAIRWISE)
def test_pairs_of_equal_groups_do_not_differ(test):
    assert {pair.p_value for pair in test([[1, 1, 1]] * 3).values()} == {1.0}


@pytest.mark.parametrize("test", [*UNPAIRED, *PAIRWISE])
@pytest.mark.parametrize("groups", [[], [[1, 2]], [[1, 2], [3, np.nan]], [[1, 2], []]])
def test_groups_need_finite_scores(test, groups):
    with pytest.raises(DataError):
        test(groups)


@pytest.mark.parametrize("test", [cochran_q, friedman])
@pytest.mark.parametrize("groups", [[], [[1, 0]], [[1, 0], [1]], [[1, 0], [1, np.inf]]])
def test_paired_groups_need_the_same_items(test, groups):
    with pytest.raises(DataError):
        test(groups)


def test_cochran_needs_scores_of_0_and_1():
    with pytest.raises(DataError, match="0 and 1"):
        cochran_q([[0, 0.5], [1, 1]])


@pytest.mark.parametrize("values", [[1, 2], [1] * 10])
def test_normality_needs_three_scores_that_differ(values):
    with pytest.raises(DataError):
        shapiro(values)

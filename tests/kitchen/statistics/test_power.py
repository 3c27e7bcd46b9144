"""Power against statsmodels, enumeration and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestIndPower, TTestPower

from kitchen.errors import ConfigError
from kitchen.statistics.power import (
    mcnemar_detectable,
    mcnemar_power,
    plan_evaluation,
    share_items_needed,
    shares_detectable,
    shares_power,
    t_detectable,
    t_items_needed,
    t_power,
)


@pytest.mark.parametrize("n", [5, 20, 100])
@pytest.mark.parametrize("effect", [0.1, 0.5, 1.0])
def test_t_power_matches_statsmodels(n, effect):
    expected = TTestPower().power(effect, n, 0.05)
    assert t_power(n, effect, 1) == pytest.approx(expected, abs=1e-6)
    expected = TTestIndPower().power(effect, n, 0.05)
    assert t_power(n, 2 * effect, 2, paired=False) == pytest.approx(expected, abs=1e-6)


def test_detectable_difference_has_the_power():
    found = t_detectable(0.5 / math.sqrt(40), 39)
    assert t_power(40, found, 0.5) == pytest.approx(0.8, abs=1e-9)
    assert t_detectable(0.0, 39) is None
    assert t_items_needed(found, 0.5) == pytest.approx(40, abs=1e-6)


@pytest.mark.parametrize("n", [1, 6, 25])
@pytest.mark.parametrize("only_first, only_second", [(0.1, 0.3), (0.0, 0.5), (0.5, 0.5)])
def test_mcnemar_power_matches_enumeration(n, only_first, only_second):
    differ, power = only_first + only_second, 0.0
    for m in range(n + 1):
        for right in range(m + 1):
            if stats.binomtest(right, m, 0.5).pvalue <= 0.05 if m else False:
                chance = stats.binom.pmf(right, m, only_second / differ)
                power += chance * stats.binom.pmf(m, n, differ)
    assert mcnemar_power(n, only_first, only_second) == pytest.approx(power, abs=1e-9)


def test_detectable_difference_of_shares_has_the_power():
    found = mcnemar_detectable(200, 0.2)
    assert mcnemar_power(200, 0.1 - found / 2, 0.1 + found / 2) == pytest.approx(0.8, abs=1e-6)
    alone = mcnemar_detectable(200, 0.01)  # more items have to differ than do
    assert mcnemar_power(200, 0.0, alone) == pytest.approx(0.8, abs=1e-6)
    assert mcnemar_detectable(5, 0.5) is None
    found = shares_detectable(100, 150, 0.7)
    assert shares_power(100, 150, 0.7, 0.7 - found) == pytest.approx(0.8, abs=1e-6)
    assert shares_detectable(2, 2, 0.5) is None


def test_power_of_fisher_matches_enumeration():
    chances = stats.binom.pmf(np.arange(31), 30, 0.5), stats.binom.pmf(np.arange(31), 30, 0.85)
    power = 0.0
    for right in range(31):
        for other in range(31):
            chance = chances[0][right] * chances[1][other]
            if chance > 1e-7:
                table = [[right, 30 - right], [other, 30 - other]]
                power += chance * (stats.fisher_exact(table).pvalue <= 0.05)
    assert shares_power(30, 30, 0.5, 0.85) == pytest.approx(power, abs=0.02)


@pytest.mark.parametrize("paired", [True, False])
def test_needed_items_are_the_fewest(paired):
    n = share_items_needed(0.6, 0.1, paired=paired)
    power = mcnemar_power(n, 0.6 * 0.3, 0.4 * 0.7) if paired else shares_power(n, n, 0.6, 0.7)
    assert power == pytest.approx(0.8, abs=0.01)
    assert power >= 0.8
    assert share_items_needed(0.6, 0.1, differ=0.15) < share_items_needed(0.6, 0.1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: t_power(10, 0.5, 0),
        lambda: t_power(10, 0.5, 1, alpha=0),
        lambda: t_items_needed(0, 1),
        lambda: t_items_needed(1, 1, power=1),
        lambda: mcnemar_power(10, 0.7, 0.7),
        lambda: mcnemar_power(10, -0.1, 0.7),
        lambda: shares_power(10, 10, 0.5, 1.5),
        lambda: share_items_needed(0.9, 0.2),
        lambda: share_items_needed(0.5, 0.0),
        lambda: share_items_needed(0.5, 0.2, differ=0.1),
        lambda: share_items_needed(0.5, 1e-6),
    ],
)
def test_impossible_plan_is_an_error(call):
    with pytest.raises(ConfigError):
        call()


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("baseline", "difference"), [(0.3, 0.1), (0.6, 0.05), (0.9, -0.1)])
def test_a_planned_number_of_items_has_the_power(
    baseline: float, difference: float, paired: bool
) -> None:
    found = plan_evaluation(baseline=baseline, difference=difference, paired=paired)
    assert found.computed == "n"
    numbers = {"n": found.n, "baseline": baseline, "difference": difference}
    assert 0.8 <= plan_evaluation(paired=paired, **numbers).power < 0.82


def test_a_planned_difference_needs_these_items() -> None:
    found = plan_evaluation(n=377, baseline=0.3)
    assert found.difference == pytest.approx(0.1, abs=0.001)
    assert plan_evaluation(n=5, baseline=0.9).difference is None


@pytest.mark.parametrize("difference", [0.1, -0.1])
def test_a_planned_baseline_is_the_highest_below_a_half(difference: float) -> None:
    found = plan_evaluation(n=377, difference=difference)
    assert found.baseline is not None
    needed = share_items_needed(found.baseline - 0.01, difference)
    assert needed <= 377 < share_items_needed(found.baseline + 0.02, difference)
    assert plan_evaluation(n=10, difference=difference).baseline is None


def test_items_that_agree_more_often_are_fewer() -> None:
    independent = plan_evaluation(baseline=0.6, difference=0.05).n
    related = plan_evaluation(baseline=0.6, difference=0.05, differ=0.15).n
    assert independent is not None
    assert related is not None
    assert related < independent / 2


@pytest.mark.parametrize(("baseline", "differ"), [(0.6, 0.1), (0.02, 0.5), (0.9, 0.11)])
def test_a_planned_gain_is_possible_with_the_share(baseline: float, differ: float) -> None:
    found = plan_evaluation(n=200, baseline=baseline, differ=differ)
    assert found.difference is not None
    most = min(2 * baseline + found.difference, 2 - 2 * baseline - found.difference)
    assert found.difference - 1e-9 <= differ <= most + 1e-9
    assert plan_evaluation(n=200, baseline=0.6, differ=0.01).difference is None


def test_a_plan_may_reach_the_ends_of_the_range() -> None:
    assert plan_evaluation(baseline=0.9, difference=0.1).n == share_items_needed(0.1, -0.1)
    assert plan_evaluation(n=200, baseline=0.0, difference=1.0).power == pytest.approx(1.0)


@pytest.mark.parametrize(
    "numbers",
    [
        {"n": 10},
        {"n": 0, "baseline": 0.5},
        {"baseline": 0.95, "difference": 0.1},
        {"n": 9, "baseline": 2.0},
        {"n": 10**9, "baseline": 0.5},
        {"n": 1_000_001, "baseline": 0.5, "difference": 0.1},
        {"n": 200, "difference": 1.5},
        {"n": 200, "baseline": 0.6, "difference": 0.2, "differ": 0.1},
        {"n": 200, "baseline": 0.05, "difference": 0.1, "differ": 0.3},
        {"n": 200, "baseline": 0.9, "differ": 0.3},
        {"n": 200, "difference": 0.2, "differ": 0.1},
        {"baseline": 0.6, "difference": -0.2, "differ": 0.1},
        {"baseline": 0.95, "difference": 0.04, "differ": 0.2},
        {"baseline": 0.6, "difference": 0.2, "differ": 0.3, "paired": False},
        {"n": 200, "baseline": 0.6, "differ": 0.3, "paired": False},
        {"n": 200, "baseline": 0.6, "difference": 0.1, "differ": float("nan")},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        plan_evaluation(**numbers)

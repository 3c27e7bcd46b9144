"""Comparison of levels by one value per run, and the exact test of Kruskal and Wallis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kitchen.errors import DataError
from kitchen.statistics.groups import kruskal, kruskal_exact, smallest_kruskal
from kitchen.statistics.levels import compare_levels

SEPARATED = {"2": [0.90, 0.91, 0.93], "5": [0.95, 0.96, 0.97], "7": [0.980, 0.985, 0.99]}
NOISE = {"2": [0.90, 0.95, 0.97], "5": [0.91, 0.94, 0.99], "7": [0.92, 0.93, 0.98]}
EQUAL = {name: [1.0, 1.0, 1.0] for name in SEPARATED}


@pytest.mark.parametrize(
    ("ranks", "statistic", "p_value"),
    [
        # Kruskal and Wallis, 1952, table 6.1
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 7.2, 0.004),
        ([[1, 2, 6], [3, 4, 5], [7, 8, 9]], 5.6, 0.050),
        ([[1, 2], [3, 4], [5, 6]], 4.5714, 0.067),
        ([[1, 2, 3], [4, 5], [6, 7]], 5.3571, 0.029),
        ([[1, 2, 3], [4, 5], [6]], 4.2857, 0.100),
    ],
)
def test_exact_p_values_are_those_of_the_table(
    ranks: Sequence[Sequence[float]], statistic: float, p_value: float
) -> None:
    found = kruskal_exact(ranks)
    assert found.statistic == pytest.approx(statistic, abs=1e-4)
    assert found.p_value == pytest.approx(p_value, abs=6e-4)


def test_the_smallest_p_value_is_that_of_separated_groups() -> None:
    assert smallest_kruskal([3, 3, 3]) == pytest.approx(6 / 1680)
    assert smallest_kruskal([3, 3]) == pytest.approx(0.1)
    assert smallest_kruskal([1, 1, 1]) == 1.0
    assert smallest_kruskal([30, 30]) == 0.0


def test_many_scores_have_the_approximate_p_value() -> None:
    random = np.random.default_rng(0)
    groups = [random.normal(size=8) for _ in range(3)]
    assert kruskal_exact(groups) == kruskal(groups)


def test_separated_levels_differ_and_noise_does_not() -> None:
    separated, noise = compare_levels({"a": SEPARATED, "b": NOISE})
    assert separated.differs
    assert separated.p_corrected == pytest.approx(2 * 6 / 1680)
    assert separated.smallest_p == separated.p_corrected
    [pair] = separated.different_pairs
    assert (pair.first, pair.second) == ("2", "7")
    assert pair.difference.estimate == pytest.approx(0.985 - 0.9133333)
    assert pair.difference.low > 0
    assert pair.effect.estimate == 1.0
    assert separated.effect is not None
    assert separated.effect.estimate == pytest.approx(7.2 / 8)
    assert not noise.differs
    assert not noise.different_pairs


@pytest.mark.parametrize(("levels", "runs"), [(2, 5), (3, 3), (4, 6)])
def test_a_detectable_difference_has_the_power_that_it_claims(levels: int, runs: int) -> None:
    random = np.random.default_rng(1)
    noise = {str(level): random.normal(size=runs) for level in range(levels)}
    [found] = compare_levels({"b": noise})
    assert found.detectable is not None
    pooled = np.sqrt(np.mean([np.var(values, ddof=1) for values in noise.values()]))
    means = [0.0, *[found.detectable / 2] * (levels - 2), found.detectable]
    shown = 0
    for _ in range(400):
        groups = [random.normal(mean, pooled, size=runs) for mean in means]
        shown += kruskal_exact(groups).p_value <= 0.05
    assert 0.74 < shown / 400 < 0.86  # three standard errors


def test_more_measures_need_larger_differences() -> None:
    [alone] = compare_levels({"b": NOISE})
    first, *_ = compare_levels({"b": NOISE, "c": NOISE, "d": NOISE, "e": NOISE})
    assert alone.detectable is not None
    assert first.detectable is not None
    assert first.detectable > 1.2 * alone.detectable


def test_some_runs_show_no_difference_however_large() -> None:
    [found] = compare_levels({"b": {str(level): [level, level + 0.5] for level in range(5)}})
    assert found.detectable == np.inf


def test_equal_values_tell_nothing() -> None:
    [found] = compare_levels({"c": EQUAL})
    assert not found.differs
    assert found.detectable is None
    assert found.effect is None
    assert not found.means["2"].known


def test_levels_with_one_run_each_have_no_interval() -> None:
    [found] = compare_levels({"a": {"2": [0.1], "5": [0.9]}})
    assert found.smallest_p == 1.0
    assert not found.means["5"].known
    with pytest.raises(DataError, match="two or more levels"):
        compare_levels({"a": {"2": [0.1, 0.2]}})

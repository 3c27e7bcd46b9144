"""The area under the ROC curve against its definition, published values and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm

from kitchen.errors import DataError
from kitchen.statistics.auc import auc


def test_it_is_the_share_of_pairs_in_order() -> None:
    positive, negative = [0.9, 0.4, 0.4], [0.1, 0.4, 0.8, 0.0]
    pairs = [(a > b) + 0.5 * (a == b) for a in positive for b in negative]
    found = auc(positive, negative)
    assert found.estimate == pytest.approx(sum(pairs) / 12)
    statistic = mannwhitneyu(positive, negative).statistic
    assert found.estimate == pytest.approx(statistic / 12)
    assert auc(negative, positive).estimate == pytest.approx(1 - found.estimate)


def test_the_interval_equals_the_definition_of_delong() -> None:
    """Structural components as sums over all pairs, on the logit scale."""
    rng = np.random.default_rng(3)
    positive, negative = rng.normal(0.7, 3, 80).round(1), rng.normal(0, 0.2, 9).round(1)
    order = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    estimate = order.mean()
    variance = order.mean(1).var(ddof=1) / 80 + order.mean(0).var(ddof=1) / 9
    half = norm.ppf(0.975) * np.sqrt(variance) / (estimate * (1 - estimate))
    logit = np.log(estimate / (1 - estimate))
    expected = 1 / (1 + np.exp(-(logit + np.array([-half, half]))))
    found = auc(positive, negative)
    assert found.low <= expected[0] + 1e-12
    assert found.high >= expected[1] - 1e-12
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.1)


def test_complete_separation_still_has_an_interval() -> None:
    found = auc([0.8, 0.9, 0.7, 0.95], [0.1, 0.2, 0.3])
    assert found.estimate == found.high == 1
    assert 0.3 < found.low < 0.7
    mirrored = auc([0.1, 0.2, 0.3], [0.8, 0.9, 0.7, 0.95])
    assert (mirrored.low, mirrored.high) == pytest.approx((0.0, 1 - found.low), abs=1e-9)


def test_a_score_that_says_nothing_is_a_half() -> None:
    found = auc([0.5] * 30, [0.5] * 30)
    assert found.estimate == 0.5
    assert found.low < 0.4 < 0.6 < found.high


def test_items_in_clusters_are_worth_less() -> None:
    rng = np.random.default_rng(0)
    effect = np.repeat(rng.normal(0, 1, 40), 5)  # 40 clusters of 5 equal items
    positive, negative = effect[:100] + 0.5, effect[100:]
    clusters = (np.repeat(np.arange(20), 5), np.repeat(np.arange(20, 40), 5))
    alone, grouped = auc(positive, negative), auc(positive, negative, clusters)
    assert grouped.estimate == alone.estimate
    assert (grouped.high - grouped.low) > 1.6 * (alone.high - alone.low)


def test_clusters_of_one_item_change_little() -> None:
    rng = np.random.default_rng(1)
    positive, negative = rng.normal(1, 1, 60), rng.normal(0, 1, 60)
    grouped = auc(positive, negative, (range(60), range(60, 120)))
    alone = auc(positive, negative)
    assert (grouped.low, grouped.high) == pytest.approx((alone.low, alone.high), abs=1e-3)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_it_covers_the_truth_as_often_as_it_says(share: float) -> None:
    rng = np.random.default_rng(2)
    shift = norm.ppf(share) * np.sqrt(2)
    intervals = [auc(rng.normal(shift, 1, 30), rng.normal(0, 1, 20)) for _ in range(400)]
    covered = [found.low <= share <= found.high for found in intervals]
    assert sum(covered) / 400 >= 0.93


def test_one_item_or_one_cluster_is_refused() -> None:
    with pytest.raises(DataError, match="positive"):
        auc([0.1], [0.1, 0.2])
    with pytest.raises(DataError, match="one cluster"):
        auc([0.1, 0.2], [0.1, 0.2], (["a", "a"], ["a", "b"]))

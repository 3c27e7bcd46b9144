"""Area under the ROC curve, with its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kitchen.errors import DataError
from kitchen.statistics.intervals import Interval
from kitchen.statistics.samples import Clusters, Scores, check_probability, checked, cluster_index
from kitchen.types import Array

_HALVINGS = 60  # of the interval 0..1: below the precision of float64


@dataclass(frozen=True)
class _Placements:
    """Placement values: the share of the other class that each item is ranked rightly against."""

    positive: Array  # (m,) 0..1
    negative: Array  # (n,) 0..1

    @classmethod
    def of(cls, positive: Array, negative: Array) -> _Placements:
        from scipy.stats import rankdata

        m, n = len(positive), len(negative)
        ranks = rankdata(np.concatenate([positive, negative]))
        above = (ranks[:m] - rankdata(positive)) / n
        below = 1 - (ranks[m:] - rankdata(negative)) / m
        return cls(above, below)

    @property
    def auc(self) -> float:
        return float(self.positive.mean())

    def variance(self) -> float:
        """Return the variance of the AUC of independent items (DeLong et al., 1988)."""
        parts = (self.positive, self.negative)
        return sum(float(part.var(ddof=1)) / len(part) for part in parts)

    def clustered_variance(self, positive: Array, negative: Array) -> float:
        """Return the variance for clusters (Obuchowski, 1997), given the cluster of each item."""
        m, n = len(self.positive), len(self.negative)
        clusters = 1 + int(max(positive.max(), negative.max()))
        x = np.bincount(positive, self.positive - self.auc, clusters)
        y = np.bincount(negative, self.negative - self.auc, clusters)
        with_positive, with_negative = len(np.unique(positive)), len(np.unique(negative))
        of_x = with_positive / ((with_positive - 1) * m) * float((x**2).sum())
        of_y = with_negative / ((with_negative - 1) * n) * float((y**2).sum())
        both = clusters / (clusters - 1) * float((x * y).sum())
        return of_x / m + of_y / n + 2 * both / (m * n)


def auc(
    positive: Scores,
    negative: Scores,
    clusters: tuple[Clusters, Clusters] | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Return the area under the ROC curve of scores of two classes, with its interval.

    It is the probability that a positive item has a higher score than a negative one; a tie counts
    half. The interval is that of DeLong, DeLong and Clarke-Pearson (1988, doi:10.2307/2531595) on
    the logit scale or, for items in clusters, with the variance of Obuchowski (1997,
    doi:10.2307/2533958). It reaches at least as far as Newcombe's (2006, doi:10.1002/sim.2324,
    method 5), which alone is used if the classes are completely separated. `clusters` are those of
    the positive and of the negative items. Raises DataError for fewer than two items or clusters of
    either class.
    """
    one = checked(positive, "scores of positive items", at_least=2)
    other = checked(negative, "scores of negative items", at_least=2)
    placements = _Placements.of(one, other)
    estimate = placements.auc
    low, high = _newcombe(estimate, len(one), len(other), confidence)
    if clusters is None:
        variance, method, units = placements.variance(), "DeLong", 0
    else:
        at = cluster_index([*clusters[0], *clusters[1]], len(one) + len(other))
        _check_clusters(at[: len(one)], at[len(one) :])
        variance = placements.clustered_variance(at[: len(one)], at[len(one) :])
        method, units = "Obuchowski", len(np.unique(at))
    if 0 < estimate < 1 and variance > 0:
        z = _normal_quantile(confidence)
        logit = math.log(estimate / (1 - estimate))
        half = z * math.sqrt(variance) / (estimate * (1 - estimate))
        low, high = min(low, _logistic(logit - half)), max(high, _logistic(logit + half))
    why = f"{len(one)} positive and {len(other)} negative items"
    why += f" in {units} clusters" if units else ""
    return Interval(estimate, low, high, confidence, method, len(one) + len(other), why)


def _newcombe(estimate: float, m: int, n: int, confidence: float) -> tuple[float, float]:
    """Return the values of the AUC that are z standard errors from the estimate, by method 5."""
    z, average = _normal_quantile(confidence), (m + n) / 2 - 1

    def distance(value: float) -> float:
        spread = 1 + average * ((1 - value) / (2 - value) + value / (1 + value))
        return abs(estimate - value) - z * math.sqrt(value * (1 - value) * spread / (m * n))

    return (
        0.0 if estimate == 0 else _crossing(distance, 0.0, estimate),
        1.0 if estimate == 1 else _crossing(distance, 1.0, estimate),
    )


def _crossing(function: Callable[[float], float], outside: float, inside: float) -> float:
    """Return where a function falls from at least 0 to below 0 between two points."""
    for _ in range(_HALVINGS):
        middle = (outside + inside) / 2
        if function(middle) >= 0:
            outside = middle
        else:
            inside = middle
    return (outside + inside) / 2


def _normal_quantile(confidence: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(0.5 + check_probability("confidence", confidence) / 2))


def _logistic(value: float) -> float:
    from scipy.special import expit

    return float(expit(value))


def _check_clusters(positive: Array, negative: Array) -> None:
    for name, at in (("positive", positive), ("negative", negative)):
        if len(np.unique(at)) < 2:
            raise DataError(
                f"the {name} items are in one cluster: the interval of a clustered AUC needs "
                "items of both classes from at least two clusters"
            )

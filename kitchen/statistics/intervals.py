"""Confidence intervals of proportions, means, ratios and paired differences, and pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kitchen.statistics.resampling import in_chunks, paired_differences
from kitchen.types import Array


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float
    confidence: float  # 0..1

    def format(self, digits: int = 3, *, sign: bool = False) -> str:
        """Return `estimate [low, high]`; with a sign for a difference."""
        spec = f"{'+' * sign}.{digits}f"
        return f"{self.estimate:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the score interval of a proportion (Wilson, 1927, doi:10.2307/2276774).

    Raises ValueError for counts that do not form a proportion.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(
            f"{successes} successes of {n}: a proportion needs n of at least 1, and at most n "
            "successes"
        )
    z2 = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2) ** 2
    share = successes / n
    middle = share + z2 / (2 * n)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n)
    low = (middle - half) / (1 + z2 / n)
    high = (middle + half) / (1 + z2 / n)
    return (0.0 if successes == 0 else low), (1.0 if successes == n else high)


def paired_bootstrap(
    before: Sequence[float] | Array,
    after: Sequence[float] | Array,
    seed: int,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Return the percentile bootstrap interval of mean(after - before), resampled in pairs.

    Efron and Tibshirani, 1993, ch. 13. `before` and `after` are (n,) scores of the same n questions
    in the same order. Raises ValueError if n is 0, they differ in length or a score is not finite.
    """
    differences = paired_differences(before, after, resamples)
    return ratio_bootstrap(differences, np.ones(len(differences)), seed, resamples, confidence)


def ratio_bootstrap(
    parts: Sequence[float] | Array,
    sizes: Sequence[float] | Array,
    seed: int,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Return the percentile bootstrap interval of sum(parts) / sum(sizes), questions resampled.

    For ratios such as nats per token, over answers of different length. Both are (n,), sizes above
    0. Raises ValueError as `paired_bootstrap` does.
    """
    numerators = paired_differences(np.zeros(len(parts)), parts, resamples)
    denominators = paired_differences(np.zeros(len(parts)), sizes, resamples)
    if denominators.min() <= 0:
        raise ValueError(f"the size at position {int(denominators.argmin())} is not above 0")
    random = np.random.default_rng(seed)
    n = len(numerators)

    def resampled_ratios(count: int) -> Array:
        indices = random.integers(n, size=(count, n))
        ratios: Array = numerators[indices].sum(axis=1) / denominators[indices].sum(axis=1)
        return ratios

    tail = (1 - _checked(confidence)) / 2
    low, high = np.quantile(in_chunks(resampled_ratios, n, resamples), [tail, 1 - tail])
    estimate = float(numerators.sum() / denominators.sum())
    return Interval(estimate, float(low), float(high), confidence)


def interval(values: Sequence[float], seed: int, confidence: float = 0.95) -> Interval:
    """Return the interval of the mean of (n,) scores in 0..1, one per question.

    It is Wilson's if all scores are 0 or 1, else that of the bootstrap.

    Where every question has the same score, all resamples are equal, and only Wilson's has a width.
    """
    if set(values) <= {0.0, 1.0}:
        successes = round(sum(values))
        low, high = wilson(successes, len(values), confidence)
        return Interval(successes / len(values), low, high, confidence)
    return paired_bootstrap([0.0] * len(values), values, seed, confidence=confidence)


def pass_at(k: int, tries: int, right: int) -> float:
    """Return the unbiased estimate of pass@k: the chance that one of k answers is right.

    1 - C(n - c, k) / C(n, k) for c right of n tries (Chen et al., 2021, arXiv:2107.03374, eq. 1).
    Raises ValueError for impossible counts.
    """
    if not 1 <= k <= tries or not 0 <= right <= tries:
        raise ValueError(
            f"pass@{k} of {right} right answers among {tries}: k must be from 1 to the number of "
            "tries, and no more of them can be right"
        )
    return 1 - math.comb(tries - right, k) / math.comb(tries, k)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return Student's t interval of the mean of (n,) independent values, such as one per seed.

    Student, 1908, doi:10.2307/2331554. Raises ValueError for fewer than two values.
    """
    sample = np.asarray(values, np.float64)
    if len(sample) < 2:
        raise ValueError("the interval of a mean needs at least two values")
    standard_error = float(sample.std(ddof=1)) / math.sqrt(len(sample))
    mean = float(sample.mean())
    half = _t_quantile(0.5 + _checked(confidence) / 2, len(sample) - 1) * standard_error
    return Interval(mean, mean - half, mean + half, confidence)


def _t_quantile(probability: float, degrees_of_freedom: int) -> float:
    """Return a quantile above the median of Student's t, by bisection of its distribution.

    That is a finite sum (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        if _t_central_probability(middle, degrees_of_freedom) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _t_central_probability(t: float, degrees_of_freedom: int) -> float:
    """Return the probability that Student's t lies between -t and t."""
    angle = math.atan2(t, math.sqrt(degrees_of_freedom))
    cosine = math.cos(angle)
    odd = degrees_of_freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, degrees_of_freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees_of_freedom > 1 else 0.0))


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence {confidence} must lie between 0 and 1")
    return confidence

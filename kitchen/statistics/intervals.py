"""How sure an evaluation is: intervals for a share, and for a difference on the same questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kitchen.types import Array

# indices drawn at once, so that memory does not grow with the number of resamples
_DRAWS = 1_000_000


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float
    confidence: float  # 0..1

    def format(self, digits: int = 3, *, sign: bool = False) -> str:
        """For a table; with a sign for a difference."""
        estimate, low, high = (
            f"{each:{'+' * sign}.{digits}f}" for each in (self.estimate, self.low, self.high)
        )
        return f"{estimate} [{low}, {high}]"


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The score interval of a share of n (Wilson, 1927, doi:10.2307/2276774); raises ValueError if
    there is none.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(
            f"{successes} successes of {n}: a share needs n of at least 1, and no more successes "
            "than n"
        )
    z2 = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2) ** 2
    share = successes / n
    middle = share + z2 / (2 * n)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n)
    low, high = (middle - half) / (1 + z2 / n), (middle + half) / (1 + z2 / n)
    return (0.0 if successes == 0 else low), (1.0 if successes == n else high)


def paired_bootstrap(
    before: Sequence[float] | Array,
    after: Sequence[float] | Array,
    seed: int,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile interval of mean(after - before), questions resampled in pairs (Efron and
    Tibshirani, 1993, ch. 13).

    `before` and `after` are (n,) scores of the same n questions in the same order. Raises
    ValueError if n is 0, they differ in length or a score is not finite.
    """
    gain = _gains(before, after, resamples)
    return ratio_bootstrap(gain, np.ones(len(gain)), seed, resamples, confidence)


def ratio_bootstrap(
    parts: Sequence[float] | Array,
    sizes: Sequence[float] | Array,
    seed: int,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile interval of sum(parts) / sum(sizes), questions resampled whole (as above).

    Such as nats per token, of answers that are long and short: (n,) each, sizes above 0. Raises
    ValueError as above.
    """
    part, size = (
        _gains(np.zeros(len(parts)), parts, resamples),
        _gains(np.zeros(len(parts)), sizes, resamples),
    )
    if size.min() <= 0:
        raise ValueError(f"the size at position {int(size.argmin())} is not above 0")
    random, n = np.random.default_rng(seed), len(part)

    def ratios(some: int) -> Array:
        drawn = random.integers(n, size=(some, n))
        found: Array = part[drawn].sum(axis=1) / size[drawn].sum(axis=1)
        return found

    tail = (1 - _checked(confidence)) / 2
    low, high = np.quantile(_in_parts(ratios, n, resamples), [tail, 1 - tail])
    return Interval(float(part.sum() / size.sum()), float(low), float(high), confidence)


def paired_permutation(
    before: Sequence[float] | Array,
    after: Sequence[float] | Array,
    seed: int,
    resamples: int = 10_000,
) -> float:
    """How often a mean of (after - before) as far from 0 would come by chance, were each as likely
    of the other sign.

    Two-sided, (1 + as far) / (1 + resamples), so never 0 (Phipson and Smyth, 2010,
    doi:10.2202/1544-6115.1585). Reads and raises what `paired_bootstrap` does.
    """
    gain = _gains(before, after, resamples)
    random, n = np.random.default_rng(seed), len(gain)
    means = _in_parts(
        lambda some: (random.integers(2, size=(some, n)) * 2 - 1) @ gain / n, n, resamples
    )
    return float(1 + (np.abs(means) >= abs(gain.mean()) * (1 - 1e-12)).sum()) / (1 + resamples)


def _gains(
    before: Sequence[float] | Array, after: Sequence[float] | Array, resamples: int
) -> Array:
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if first.ndim != 1 or first.shape != second.shape or not len(first) or resamples < 1:
        raise ValueError(
            "paired scores are two rows of one length, at least 1, with at least one resample; "
            "there are "
            f"{first.shape}, {second.shape} and {resamples}"
        )
    gain: Array = second - first
    if not np.isfinite(gain).all():
        raise ValueError(f"the score at position {int(np.argmin(np.isfinite(gain)))} is not finite")
    return gain


def _in_parts(draw: Callable[[int], Array], n: int, resamples: int) -> Array:
    """(resamples,) means, of so many draws at once."""
    at_once = max(1, _DRAWS // n)
    return np.concatenate(
        [draw(min(at_once, resamples - done)) for done in range(0, resamples, at_once)]
    )


def interval(values: Sequence[float], seed: int, confidence: float = 0.95) -> Interval:
    """Of the mean of (n,) scores from 0 to 1, one a question: Wilson's if each is 0 or 1, else a
    bootstrap.

    Where every question has the same score, no resample differs, and only the former has a width.
    """
    if set(values) <= {0.0, 1.0}:
        right = round(sum(values))
        low, high = wilson(right, len(values), confidence)
        return Interval(right / len(values), low, high, confidence)
    return paired_bootstrap([0.0] * len(values), values, seed, confidence=confidence)


def pass_at(k: int, tries: int, right: int) -> float:
    """The chance that one at least of k answers is right, estimated without bias from `tries` of
    which some are.

    1 - C(n - c, k) / C(n, k) (Chen et al., 2021, arXiv:2107.03374, eq. 1). Raises ValueError for
    counts that cannot be.
    """
    if not 1 <= k <= tries or not 0 <= right <= tries:
        raise ValueError(
            f"pass@{k} of {right} right answers among {tries}: k is from 1 to the number of tries, "
            "and no "
            "more of them are right than there are"
        )
    return 1 - math.comb(tries - right, k) / math.comb(tries, k)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Of a mean of (n,) independent values, such as one a seed, by Student's t (Student, 1908,
    doi:10.2307/2331554).

    Raises ValueError for fewer than two values.
    """
    found = np.asarray(values, np.float64)
    if len(found) < 2:
        raise ValueError("the interval of a mean needs at least two values")
    error = float(found.std(ddof=1)) / math.sqrt(len(found))
    mean, half = (
        float(found.mean()),
        _t_quantile(0.5 + _checked(confidence) / 2, len(found) - 1) * error,
    )
    return Interval(mean, mean - half, mean + half, confidence)


def _t_quantile(share: float, freedom: int) -> float:
    """The inverse of Student's distribution, by bisection of its integral, which is a finite sum
    (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < 2 * share - 1 else (low, middle)
    return (low + high) / 2


def _t_within(t: float, freedom: int) -> float:
    """The chance that Student's t lies between -t and t."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence {confidence} must lie between 0 and 1")
    return confidence

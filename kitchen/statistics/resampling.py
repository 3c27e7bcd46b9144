"""Resampling of independent units: bootstrap and sign flips."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kitchen.errors import ConfigError
from kitchen.statistics.samples import Ratio
from kitchen.types import Array

RESAMPLES = 10_000
SEED = 0  # of all resampling, so that the same data always has the same interval and p-value
EXACT_UP_TO = 16  # units whose sign flips are enumerated

# indices drawn at once, so that memory does not grow with the number of resamples
_INDICES_PER_CHUNK = 1_000_000


def resampled(ratio: Ratio, resamples: int, seed: int) -> Array:
    """Return (resamples,) values of a statistic, with units drawn with replacement."""
    _check_resamples(resamples)
    random = np.random.default_rng(seed)
    columns = np.ascontiguousarray(ratio.columns.T)
    constant = [bool((column == column[0]).all()) for column in columns]
    n = ratio.units

    def draw(number: int) -> Array:
        indices = random.integers(n, size=(number, n), dtype=np.int32)
        sums = np.empty((number, len(columns)))
        for at, column in enumerate(columns):
            sums[:, at] = column[0] * n if constant[at] else column.take(indices).sum(axis=1)
        return ratio.at(sums)

    return _in_chunks(draw, n, resamples)


def sign_flipped(ratio: Ratio, resamples: int, seed: int) -> tuple[Array, bool]:
    """Return values of a difference with the two scores of each unit exchanged, or not, at random.

    The second value says whether all exchanges are enumerated, rather than drawn.
    """
    _check_resamples(resamples)
    columns = ratio.columns
    n = ratio.units
    if columns.shape[1] == 2:  # exchanging the scores changes the sign of their difference
        sums, flips = columns.sum(axis=0), columns[:, :1]
    else:
        sums = (columns[:, :2] + columns[:, 2:]).sum(axis=0)
        flips = columns[:, 2:] - columns[:, :2]

    def flipped(signs: Array) -> Array:
        flipped_sums = signs @ flips
        if columns.shape[1] == 2:
            values: Array = flipped_sums[:, 0] / sums[1]
            return values
        return ratio.at(np.concatenate([sums - flipped_sums, sums + flipped_sums], axis=1))

    if n <= EXACT_UP_TO:
        bits = np.arange(2**n)[:, None] >> np.arange(n)
        return flipped(1.0 - 2.0 * (bits & 1)), True
    random = np.random.default_rng(seed)

    def draw(number: int) -> Array:
        coins = np.frombuffer(random.bytes(number * -(-n // 8)), np.uint8)
        bits = np.unpackbits(coins.reshape(number, -1), axis=1)[:, :n]
        return flipped(1.0 - 2.0 * bits)

    return _in_chunks(draw, n, resamples), False


def _in_chunks(draw: Callable[[int], Array], n: int, resamples: int) -> Array:
    """Return (resamples,) statistics, drawn in chunks of bounded memory."""
    chunk = max(1, _INDICES_PER_CHUNK // n)
    counts = [min(chunk, resamples - done) for done in range(0, resamples, chunk)]
    return np.concatenate([draw(number) for number in counts])


def _check_resamples(resamples: int) -> None:
    if resamples < 100:
        raise ConfigError(f"resamples={resamples} is too few; at least 100 are needed")

"""Resampling that bootstraps and permutation tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kitchen.types import Array

# indices drawn at once, so that memory does not grow with the number of resamples
_INDICES_PER_CHUNK = 1_000_000


def paired_differences(
    before: Sequence[float] | Array, after: Sequence[float] | Array, resamples: int
) -> Array:
    """Return (n,) after - before; raises ValueError if they are not paired finite scores."""
    first = np.asarray(before, np.float64)
    second = np.asarray(after, np.float64)
    if first.ndim != 1 or first.shape != second.shape or not len(first) or resamples < 1:
        raise ValueError(
            "paired scores are two arrays of one length, at least 1, with at least one resample; "
            f"the shapes are {first.shape} and {second.shape}, with {resamples} resamples"
        )
    differences: Array = second - first
    finite = np.isfinite(differences)
    if not finite.all():
        raise ValueError(f"the score at position {int(np.argmin(finite))} is not finite")
    return differences


def in_chunks(draw: Callable[[int], Array], n: int, resamples: int) -> Array:
    """Return (resamples,) statistics, drawn in chunks of bounded memory."""
    chunk = max(1, _INDICES_PER_CHUNK // n)
    counts = [min(chunk, resamples - done) for done in range(0, resamples, chunk)]
    return np.concatenate([draw(count) for count in counts])

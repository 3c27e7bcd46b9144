"""Tests of significance, which return p-values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kitchen.statistics.resampling import in_chunks, paired_differences
from kitchen.types import Array


def paired_permutation(
    before: Sequence[float] | Array,
    after: Sequence[float] | Array,
    seed: int,
    resamples: int = 10_000,
) -> float:
    """Return the two-sided p-value of a sign-flip permutation test of mean(after - before).

    p = (1 + number of random sign flips with |flipped mean| >= |observed mean|) / (1 + resamples),
    so it is never 0 (Phipson and Smyth, 2010, doi:10.2202/1544-6115.1585). Takes and raises what
    `paired_bootstrap` does.
    """
    differences = paired_differences(before, after, resamples)
    random = np.random.default_rng(seed)
    n = len(differences)

    def flipped_means(count: int) -> Array:
        signs = random.integers(2, size=(count, n)) * 2 - 1
        means: Array = signs @ differences / n
        return means

    means = in_chunks(flipped_means, n, resamples)
    # 1e-12: equal means may differ in their last bits
    threshold = abs(differences.mean()) * (1 - 1e-12)
    return float(1 + (np.abs(means) >= threshold).sum()) / (1 + resamples)

"""Tests of significance against published values and simulation."""

import math

import numpy as np
import pytest

from kitchen.statistics.significance import paired_permutation


def test_permutation_test_matches_enumeration():
    """Fisher, 1935, The Design of Experiments, ch. 21: Darwin's maize, 15 pairs.

    1,726 of the 2^15 sign flips are as far from 0.
    """
    gains = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    found = paired_permutation([0] * 15, gains, seed=3, resamples=100_000)
    assert found == pytest.approx(1726 / 2**15, abs=0.002)
    assert paired_permutation(gains, [0] * 15, seed=3, resamples=100_000) == pytest.approx(
        found, abs=0.003
    )


def test_permutation_test_has_nominal_size():
    random = np.random.default_rng(5)
    low = sum(
        paired_permutation(*random.random((2, 30)), seed=run, resamples=500) < 0.1
        for run in range(400)
    )
    assert 0.06 <= low / 400 <= 0.145  # 3 standard errors around 0.1
    assert paired_permutation([0.5] * 4, [0.5] * 4, seed=0) == 1.0
    with pytest.raises(ValueError, match="position 1 is not finite"):
        paired_permutation([0, 0], [1, math.nan], seed=0)

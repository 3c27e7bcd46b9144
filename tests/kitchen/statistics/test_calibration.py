"""Expected calibration error, and its bins."""

from __future__ import annotations

import numpy as np
import pytest

from kitchen.errors import ConfigError, DataError
from kitchen.statistics.calibration import calibration


def test_expected_error_is_the_weighted_mean_gap() -> None:
    found = calibration([0.5] * 4 + [0.9] * 4, [1, 0, 0, 0, 1, 1, 1, 1], bins=2)
    assert [each.confidence for each in found.bins] == pytest.approx([0.5, 0.9])
    assert [each.accuracy.estimate for each in found.bins] == [0.25, 1.0]
    assert found.expected_error == pytest.approx((0.25 + 0.1) / 2)
    assert found.overconfidence.estimate == pytest.approx(0.7 - 5 / 8)


def test_equal_confidences_are_in_one_bin() -> None:
    found = calibration([1.0] * 6 + [1 / 3, 2 / 3, 2 / 3], [1] * 9, bins=4)
    assert [each.accuracy.n for each in found.bins] == [3, 6]


def test_bins_have_about_equal_numbers() -> None:
    shares = np.linspace(0, 1, 100)
    found = calibration(shares, [1] * 100)
    assert [each.accuracy.n for each in found.bins] == [10] * 10


def test_calibrated_answers_have_a_small_error() -> None:
    rng = np.random.default_rng(0)
    shares = rng.random(20_000)
    right = (rng.random(20_000) < shares).astype(float)
    assert calibration(shares, right).expected_error < 0.02
    assert calibration(shares, 1 - right).expected_error > 0.3


@pytest.mark.parametrize(
    ("shares", "right", "bins", "error"),
    [
        ([0.5], [1, 0], 10, DataError),
        ([1.5], [1], 10, DataError),
        ([], [], 10, DataError),
        ([0.5], [1], 0, ConfigError),
    ],
)
def test_invalid_arrays_and_bins_are_refused(
    shares: list[float], right: list[float], bins: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        calibration(shares, right, bins)

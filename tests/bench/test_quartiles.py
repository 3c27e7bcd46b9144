"""Quartiles and ratios of measurements."""

from __future__ import annotations

import pytest

from tests.bench.quartiles import Quartiles, Ratio


def test_quartiles_surround_the_median() -> None:
    assert Quartiles.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Quartiles(3.0, 2.0, 4.0)
    assert Quartiles.of([1234.5]).format() == "1,234.50 [1,234.50–1,234.50]"


def test_a_ratio_has_the_quartiles_of_its_pairs() -> None:
    ratio = Ratio.of([4.0, 9.0, 2.0], [2.0, 3.0, 2.0])
    assert ratio.of_medians == 2.0
    assert ratio.pairs == Quartiles(2.0, 1.5, 2.5)
    with pytest.raises(ValueError, match="zip"):
        Ratio.of([1.0, 2.0], [1.0])

"""Tables of KL divergences: small numbers do not read as 0."""

from __future__ import annotations

import math

import pytest

from kitchen.statistics.intervals import Interval, interval
from kitchen.statistics.samples import NON_NEGATIVE
from stages.evaluate.kl import shown_interval, shown_number


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [
        (0.0, 3, "0.000"),
        (1e-6, 3, "1.0e-06"),
        (0.000449, 3, "4.5e-04"),
        (0.00051, 3, "0.001"),
        (3.14159, 3, "3.142"),
        (0.00049, 4, "0.0005"),
        (2.5e-9, 4, "2.5e-09"),
        (-2.5e-9, 4, "-2.5e-09"),
        (123456.0, 3, "123456.000"),
    ],
)
def test_a_small_number_does_not_read_as_0(number: float, digits: int, text: str) -> None:
    assert shown_number(number, digits) == text
    assert (float(text) == 0) == (number == 0)


def test_a_small_interval_does_not_read_as_0() -> None:
    small = interval([1e-6, 1.2e-6, 0.9e-6, 1.1e-6], bounds=NON_NEGATIVE)
    assert 0 < small.low < small.estimate < small.high < 1e-5
    low, high = f"{small.low:.1e}", f"{small.high:.1e}"
    assert shown_interval(small) == f"{small.estimate:.1e} [{low}, {high}]"
    usual = Interval(0.25, 0.0, 1.5, 0.95)
    assert shown_interval(usual) == usual.format() == "0.250 [0.000, 1.500]"
    unknown = Interval(1e-6, -math.inf, math.inf, 0.95)
    assert shown_interval(unknown) == "1.0e-06 [no interval]"

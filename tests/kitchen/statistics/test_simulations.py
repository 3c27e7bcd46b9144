"""Default tests keep their type-I error, and default intervals their coverage, in simulations."""

from __future__ import annotations

import pytest

from tests.support.simulations import PAGE, all_rows, tables


@pytest.mark.slow
def test_errors_and_coverages_are_as_stated():
    """One test, because several would simulate in several workers."""
    errors, coverages = all_rows()["type-I error"], all_rows()["coverage"]
    for row in errors:
        assert max(row.values) <= 0.06, row
        assert row.exempt or min(row.values) >= 0.03, row
    for row in coverages:
        assert row.exempt or min(row.values) >= 0.93, row
    assert tables() in PAGE.read_text()

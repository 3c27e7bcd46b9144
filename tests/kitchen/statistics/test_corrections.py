"""Corrections of p-values against statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from kitchen.errors import ConfigError, DataError
from kitchen.statistics.corrections import correct


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
@pytest.mark.parametrize(
    "method, name", [("holm", "holm"), ("bh", "fdr_bh"), ("bonferroni", "bonferroni")]
)
def test_correction_matches_statsmodels(method, name, p_values):
    expected = multipletests(p_values, method=name)[1]
    assert correct(p_values, method) == pytest.approx(expected, abs=1e-12)


def test_none_leaves_p_values_as_they_are():
    assert correct([0.3, 0.01], "none").tolist() == [0.3, 0.01]
    assert correct([], "holm").shape == (0,)


def test_unknown_correction_suggests_a_name():
    with pytest.raises(ConfigError, match="did you mean 'holm'"):
        correct([0.1], "hulm")


@pytest.mark.parametrize("p_values", [[1.5], [-0.1], [np.nan]])
def test_p_values_must_be_probabilities(p_values):
    with pytest.raises(DataError, match="p-values"):
        correct(p_values)

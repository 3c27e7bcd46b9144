"""Corrections of p-values for multiple comparisons."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from kitchen.errors import check_name
from kitchen.statistics.samples import Scores, checked
from kitchen.types import Array

Correction = Literal["holm", "bh", "bonferroni", "none"]
CORRECTIONS: tuple[str, ...] = get_args(Correction)


def correct(p_values: Scores, method: Correction = "holm") -> Array:
    """Return (n,) corrected p-values, in the order of the given ones.

    `holm` (Holm, 1979) and `bonferroni` bound the probability of any false positive, `bh`
    (Benjamini and Hochberg, 1995) the expected share of false positives. Raises ConfigError for
    another name, DataError for a p-value outside 0..1.
    """
    check_name("correct", method, CORRECTIONS)
    if not len(p_values):
        return np.zeros(0)
    p = checked(p_values, "p-values", bounds=(0.0, 1.0))
    n = len(p)
    order = np.argsort(p, kind="stable")
    ranks = np.arange(1, n + 1)
    if method == "holm":
        ordered = np.maximum.accumulate(p[order] * (n + 1 - ranks))
    elif method == "bh":
        ordered = np.minimum.accumulate((p[order] * n / ranks)[::-1])[::-1]
    else:
        ordered = p[order] * (n if method == "bonferroni" else 1)
    corrected = np.empty(n)
    corrected[order] = np.minimum(ordered, 1.0)
    return corrected

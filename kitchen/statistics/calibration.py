"""Calibration: whether answers with a confidence of 0.8 are right 80 % of the time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kitchen.errors import ConfigError
from kitchen.statistics.intervals import Interval, interval, paired_interval
from kitchen.statistics.samples import SHARE, Scores, checked_pair
from kitchen.types import Array

BINS = 10


@dataclass(frozen=True)
class CalibrationBin:
    """Answers of similar confidence."""

    confidence: float  # mean, 0..1
    accuracy: Interval  # share of right answers

    @property
    def gap(self) -> float:
        """The distance between confidence and accuracy."""
        return abs(self.confidence - self.accuracy.estimate)


@dataclass(frozen=True)
class CalibrationResult:
    """Confidence compared with accuracy, by bins of about equal numbers of answers."""

    n: int
    bins: tuple[CalibrationBin, ...]  # in the order of their confidence
    overconfidence: Interval  # mean confidence minus accuracy

    @property
    def expected_error(self) -> float:
        """The expected calibration error: mean gap of the bins, weighted by their sizes.

        Naeini, Cooper and Hauskrecht, 2015, doi:10.1609/aaai.v29i1.9602; Guo et al., 2017,
        arXiv:1706.04599, equation 3. Chance alone makes it larger than 0: the more so, the fewer
        answers there are in a bin.
        """
        return sum(each.gap * each.accuracy.n for each in self.bins) / self.n


def calibration(confidence: Scores, right: Scores, bins: int = BINS) -> CalibrationResult:
    """Compare (n,) confidences with (n,) scores of 0 or 1, in at most `bins` bins of equal mass.

    Bins have about equal numbers of answers rather than equal widths (Nixon et al., 2019,
    arXiv:1904.01685, section 3), so that none but the last is nearly empty. Answers of equal
    confidence, such as equal shares of votes, are in one bin, so there may be fewer bins.
    """
    if bins < 1:
        raise ConfigError(f"bins={bins} must be at least 1")
    shares, scores = checked_pair(confidence, right, bounds=SHARE)
    order = np.argsort(shares, kind="stable")
    shares, scores = shares[order], scores[order]
    edges = _edges(shares, bins)
    found = [
        CalibrationBin(float(shares[low:high].mean()), interval(scores[low:high]))
        for low, high in pairwise(edges)
    ]
    return CalibrationResult(len(shares), tuple(found), paired_interval(scores, shares))


def _edges(shares: Array, bins: int) -> list[int]:
    """Return the ends of the bins of sorted confidences, 0 first; equal ones stay together."""
    ends = (np.flatnonzero(np.diff(shares)) + 1).tolist() + [len(shares)]
    edges = [0]
    for end in ends:
        if end - edges[-1] >= len(shares) / bins or end == len(shares):
            edges.append(end)
    return edges

"""The report of a comparison of runs, by held-out set and measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kitchen.statistics.comparison import Comparison
from kitchen.statistics.corrections import Correction
from kitchen.statistics.intervals import Interval
from kitchen.statistics.significance import SignificanceResult
from kitchen.types import Published


@dataclass(frozen=True)
class ComparedItems:
    """The number of items of two runs, or groups of runs, in a set."""

    first: int  # items that are compared
    second: int  # the same ones, if they are paired
    paired: bool
    only_first: int  # items that only the first has
    only_second: int
    failed_first: int
    failed_second: int
    unscored_first: int  # items that did not fail, and for which the measure is not defined
    unscored_second: int


@dataclass(frozen=True)
class ComparedPair:
    """A second run, or group of runs, compared with a first one, on one measure of one set."""

    set: str
    measure: str
    first: str  # name of the run or group
    second: str
    items: ComparedItems
    comparison: Comparison | None  # None if they cannot be compared
    problem: str = ""  # why not
    note: str = ""  # a caution
    first_seeds: tuple[float, ...] = ()  # the mean of each run of a group
    second_seeds: tuple[float, ...] = ()


@dataclass(frozen=True)
class OverallTest:
    """A test whether any two of three or more runs differ, on one measure of one set."""

    set: str
    measure: str
    names: tuple[str, ...]
    test: SignificanceResult
    why: str  # one sentence: why this test
    further_tests: tuple[SignificanceResult, ...] = ()
    effects: Mapping[str, Interval] = field(default_factory=dict)
    # effect sizes that the data does not define, with the reason
    undefined_effects: Mapping[str, str] = field(default_factory=dict)
    p_corrected: float = 1.0  # the p-value of the test, corrected for all sets and measures


@dataclass(frozen=True)
class ComparisonReport(Published):
    """All comparisons of runs; their p-values are corrected together."""

    pairs: tuple[ComparedPair, ...]
    overall: tuple[OverallTest, ...]  # for three or more runs
    correction: Correction
    alpha: float
    notes: tuple[str, ...] = ()  # on runs and sets that were not compared as a whole

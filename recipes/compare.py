"""Comparison of finished runs on the held-out items that all of them have answered."""

from typing import Annotated

from pydantic import Field, PositiveFloat

from kitchen import Recipe, Step, sequence
from kitchen.statistics.corrections import Correction
from stages import compare


class Compare(Recipe):
    """Which of two or more runs is better, with intervals, tests and a verdict; no model is run."""

    # runs to compare; the first is the baseline. NAME=RUN,RUN is a group of runs that differ in
    # their seed, and RUN@before the weights that a run started from
    runs: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()  # held-out sets to compare; empty for all that the runs share
    measures: tuple[str, ...] = ()  # measures, such as exact_match or loss; empty for all
    # largest difference that does not matter, in units of the measure, such as 0.02; without it, no
    # verdict is "the same"
    margin: PositiveFloat | None = None
    # column of the data that names the document, conversation or person that an item comes from, if
    # items of one are not independent
    cluster: str | None = None
    # correction of the p-values of all comparisons shown: holm, bh (Benjamini and Hochberg),
    # bonferroni or none
    correct: Correction = "holm"
    # significance level; intervals have the confidence 1 - alpha
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    # compare the items of each run as different ones, even if the runs have answered the same
    unpaired: bool = False
    # compare each other run with the baseline only, and not all pairs: fewer p-values to correct
    only_baseline: bool = False

    def workflow(self) -> Step:
        options = compare.CompareOptions(
            self.sets,
            self.measures,
            self.margin,
            self.cluster,
            self.correct,
            self.alpha,
            self.unpaired,
            self.only_baseline,
        )
        return sequence(compare.CompareRuns(self.runs, options))

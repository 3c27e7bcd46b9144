"""The recipe that compares runs, and the report that its run publishes."""

from __future__ import annotations

from kitchen.engine.observers import Observer, StageDone
from kitchen.statistics.report import ComparisonReport

RECIPE = "recipes.compare"


class ReportCollector(Observer):
    """Keeps the report that a run of recipes.compare publishes."""

    def __init__(self) -> None:
        self.report: ComparisonReport | None = None

    def stage_done(self, event: StageDone) -> None:
        for value in event.published:
            if isinstance(value, ComparisonReport):
                self.report = value

"""What a recipe tells while it is cooked."""

from __future__ import annotations

from typing import Any

from kitchen import Metrics, Observer, StageDone, Table


class Seen(Observer):
    """All that was published, in order."""

    def __init__(self) -> None:
        self.published: list[Any] = []

    def done(self, event: StageDone) -> None:
        self.published += event.published

    @property
    def tables(self) -> list[Table]:
        return [value for value in self.published if isinstance(value, Table)]

    def series(self, key: str) -> list[float]:
        return [each[key] for each in self.published if isinstance(each, Metrics) and key in each]

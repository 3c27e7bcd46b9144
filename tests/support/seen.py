"""What a recipe tells while it is cooked, and what it comes to."""

from __future__ import annotations

from typing import Any

from kitchen import Metrics, Observer, Outcome, StageDone, Table
from kitchen.ports import BlobStore
from kitchen.runs.store import read_journal


class Seen(Observer):
    """All that was published, in order."""

    def __init__(self) -> None:
        self.published: list[Any] = []

    def stage_done(self, event: StageDone) -> None:
        self.published += event.published

    @property
    def tables(self) -> list[Table]:
        return [value for value in self.published if isinstance(value, Table)]

    def series(self, key: str) -> list[float]:
        return [each[key] for each in self.published if isinstance(each, Metrics) and key in each]


def numbers(blobs: BlobStore, outcome: Outcome) -> tuple[list[dict[str, Any]], str]:
    """What a run came to: all its metrics, without what clocks say, and the digest of the weights
    exported last.
    """
    assert outcome.checkpoint is not None
    rows = [
        {key: value for key, value in row.items() if key not in ("seconds", "timestamp")}
        for row in read_journal(blobs, outcome.run, "metrics")
    ]
    return rows, outcome.checkpoint.sha256

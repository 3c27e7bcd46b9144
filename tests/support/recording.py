"""An observer that records what a run publishes, and the numbers that two equal runs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen import Metrics, Observer, Outcome, Recipe, Samples, StageDone, Table
from kitchen.ports import BlobStore, DatasetStore
from kitchen.runs.store import read_journal


class RecordingObserver(Observer):
    """Records everything that stages publish, in order."""

    def __init__(self) -> None:
        self.published: list[Any] = []

    def stage_done(self, event: StageDone) -> None:
        self.published += event.published

    @property
    def tables(self) -> list[Table]:
        return [value for value in self.published if isinstance(value, Table)]

    def series(self, key: str) -> list[float]:
        return [
            metrics[key]
            for metrics in self.published
            if isinstance(metrics, Metrics) and key in metrics
        ]

    def metric_names(self) -> set[str]:
        return set().union(*(value for value in self.published if isinstance(value, Metrics)))

    def sampled_texts(self, when: str) -> list[str]:
        """Return the texts of the sample tables' rows with this `when`."""
        tables = [value for value in self.published if isinstance(value, Samples)]
        return [row["text"] for table in tables for row in table.rows if row.get("when") == when]


def without_clocks(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a journal without its times, which differ between equal runs."""
    return {key: value for key, value in row.items() if key not in ("seconds", "timestamp")}


def numbers(blobs: BlobStore, outcome: Outcome) -> tuple[list[dict[str, Any]], str]:
    """Return a run's metrics, without times, and the digest of the weights it exported last."""
    assert outcome.checkpoint is not None
    rows = read_journal(blobs, outcome.run, "metrics")
    return [without_clocks(row) for row in rows], outcome.checkpoint.sha256


def observed_run(
    recipe: Recipe, datasets: DatasetStore, training: type[FakeTraining] = FakeTraining
) -> RecordingObserver:
    """Run a recipe on the fake, with blobs in memory, and return what it publishes."""
    seen, blobs = RecordingObserver(), FakeBlobs()
    kitchen.run(
        recipe,
        training=training(blobs),
        datasets=datasets,
        blobs=blobs,
        name="run",
        observers=[seen],
    )
    return seen

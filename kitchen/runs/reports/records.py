"""Everything that a report or a model card shows of a run, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitchen.ports import BlobStore
from kitchen.runs.history import Point as CurvePoint
from kitchen.runs.history import series_of, speed_of
from kitchen.runs.store import read_journal, read_run, run_summary
from kitchen.types import Table


@dataclass(frozen=True)
class RunRecord:
    """Everything that a report shows of a run."""

    name: str
    status: str
    seconds: float  # over all attempts
    record: Mapping[str, Any]  # run.json
    metrics: Sequence[Mapping[str, Any]]  # rows of metrics.jsonl
    tables: Sequence[Table]
    samples: Sequence[Mapping[str, Any]]
    checkpoints: Sequence[Mapping[str, Any]]

    def series(self, metric: str) -> Sequence[CurvePoint]:
        return series_of(self.metrics, metric)

    def speed(self) -> Sequence[CurvePoint]:
        """Return tokens per second by step."""
        return speed_of(self.metrics)


def read_run_record(blobs: BlobStore, name: str) -> RunRecord:
    """Read a run; raises ConfigError if it does not exist or is damaged."""
    summary = run_summary(blobs, name)
    tables = [
        Table(row["title"], tuple(row["columns"]), tuple(map(tuple, row["rows"])))
        for row in read_journal(blobs, name, "tables")
    ]
    return RunRecord(
        name,
        summary.status,
        summary.seconds,
        read_run(blobs, name),
        read_journal(blobs, name, "metrics"),
        tables,
        read_journal(blobs, name, "samples"),
        read_journal(blobs, name, "checkpoints"),
    )

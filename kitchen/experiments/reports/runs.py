"""The records of the runs that a report is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitchen.experiments.ledger import Ledger, sweep_names
from kitchen.ports import BlobStore
from kitchen.runs.history import Point, series_of
from kitchen.runs.store import read_journal, read_run, run_summary
from kitchen.types import Table

SEED = "seed"  # the axis along which runs of a group differ


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

    def series(self, metric: str) -> Sequence[Point]:
        return series_of(self.metrics, metric)

    def speed(self) -> Sequence[Point]:
        """Return tokens per second by step, where a step follows another one of its attempt."""
        points: list[Point] = []
        before = None
        for row in self.metrics:
            if "tokens" not in row:
                continue
            seconds = float(row["seconds"])
            if before is not None and seconds > before:
                points.append((int(row["step"]) + 1, float(row["tokens"]) / (seconds - before)))
            before = seconds
        return points


@dataclass(frozen=True)
class ReportedGroup:
    """Runs that differ in their seed only, or a single run."""

    name: str
    runs: Sequence[str]

    def argument(self) -> str:
        """Return the group as recipes.compare takes it."""
        alone = len(self.runs) == 1 and self.name == self.runs[0]
        return self.name if alone else f"{self.name}={','.join(self.runs)}"


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


def groups_of(blobs: BlobStore, names: Sequence[str]) -> Sequence[ReportedGroup]:
    """Return the runs of these names by group: a sweep stands for its completed points.

    Points of a sweep that differ in the axis `seed` only are one group.
    """
    sweeps = set(sweep_names(blobs))
    groups: list[ReportedGroup] = []
    for name in names:
        groups += (
            _groups_of_sweep(blobs, name) if name in sweeps else [ReportedGroup(name, (name,))]
        )
    return groups


def _groups_of_sweep(blobs: BlobStore, name: str) -> Iterator[ReportedGroup]:
    groups: dict[str, list[str]] = {}
    for status in Ledger(blobs, name).statuses():
        values = {key: value for key, value in status.point.values.items() if key != SEED}
        # "=" separates the name of a group from its runs
        group = ", ".join(f"{key} {value}" for key, value in values.items()) or name
        if status.state == "completed":
            groups.setdefault(group.replace("=", " "), []).append(status.point.run)
    for group, runs in groups.items():
        yield ReportedGroup(group, tuple(runs))

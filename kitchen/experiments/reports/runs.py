"""The runs that a report is about, in groups that differ in their seed only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from kitchen.config.yaml import yaml_value
from kitchen.errors import ConfigError, did_you_mean
from kitchen.experiments.ledger import Ledger, Point, sweep_names
from kitchen.experiments.reports.searches import best_points
from kitchen.ports import BlobStore
from kitchen.runs.store import list_runs, run_exists

SEED = "seed"  # the axis along which runs of a group differ


@dataclass(frozen=True)
class ReportedGroup:
    """Runs that differ in their seed only, or a single run."""

    name: str
    runs: Sequence[str]

    def argument(self) -> str:
        """Return the group as recipes.compare takes it."""
        alone = len(self.runs) == 1 and self.name == self.runs[0]
        return self.name if alone else f"{self.name}={','.join(self.runs)}"


def groups_of(
    blobs: BlobStore, names: Sequence[str]
) -> tuple[Sequence[ReportedGroup], Sequence[str]]:
    """Return the runs of these names by group, and the points of sweeps that have not completed.

    A sweep stands for its completed points, and a search for its best ones; those that differ in
    the axis `seed` only are one group. Raises ConfigError for an unknown name, or a run that is
    named twice.
    """
    sweeps = sweep_names(blobs)
    groups: list[ReportedGroup] = []
    left_out: list[str] = []
    for name in names:
        if name not in sweeps:
            _check_run(blobs, name, sweeps)
            groups.append(ReportedGroup(name, (name,)))
            continue
        ledger = Ledger(blobs, name)
        statuses = ledger.statuses()
        done = [status.point for status in best_points(ledger.sweep(), statuses)]
        groups += _groups_of_points(done, name, several=len(names) > 1)
        left_out += [f"{of.point.run} ({of.state})" for of in statuses if of.state != "completed"]
    _check_different(groups)
    return groups, left_out


def _check_run(blobs: BlobStore, name: str, sweeps: Sequence[str]) -> None:
    if not run_exists(blobs, name):
        known = [*sweeps, *(run.id for run in list_runs(blobs))]
        raise ConfigError(f"there is no run or sweep {name!r}; {did_you_mean(name, known)}")


def _check_different(groups: Sequence[ReportedGroup]) -> None:
    counts = Counter(chain.from_iterable(group.runs for group in groups))
    for run, count in counts.items():
        if count > 1:
            raise ConfigError(f"run {run!r} is named twice, perhaps as a point of a sweep")


def _groups_of_points(
    points: Sequence[Point], sweep: str, *, several: bool
) -> Sequence[ReportedGroup]:
    """Return points by group, named by their values; `several` sweeps need their names, too."""
    groups: dict[str, list[str]] = {}
    for point in points:
        values = [f"{key} {yaml_value(of)}" for key, of in point.values.items() if key != SEED]
        group = ", ".join(values) or sweep
        if several and values:
            group = f"{sweep}: {group}"
        # "=" separates the name of a group from its runs
        groups.setdefault(group.replace("=", " "), []).append(point.run)
    return [ReportedGroup(group, tuple(runs)) for group, runs in groups.items()]

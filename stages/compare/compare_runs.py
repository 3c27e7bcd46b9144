"""Comparison of the recorded evaluations of runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from kitchen.errors import ConfigError
from kitchen.ports import BlobStore
from kitchen.runs.store import read_run
from kitchen.stage import Stage
from kitchen.statistics.report import ComparisonReport
from kitchen.types import Facts, Metrics, Table
from stages.compare.comparing import VERSUS, CompareOptions, check_design, compare_evaluations
from stages.compare.recorded import RecordedEvaluation, read_evaluation, run_of
from stages.compare.text import comparison_metrics, details_table, verdict_table


class CompareRuns(Stage):
    """Compare the final evaluations of two or more runs, or of groups of seeds, item by item."""

    runs: tuple[str, ...]
    options: CompareOptions = CompareOptions()

    def run(self, blobs: BlobStore) -> tuple[ComparisonReport, Facts, Metrics, Table, Table]:
        groups: dict[str, tuple[RecordedEvaluation, ...]] = {}
        facts = Facts()
        for name, runs in run_groups(self.runs).items():
            groups[name] = tuple(read_evaluation(blobs, run) for run in runs)
            facts |= {f"samples.{run.run}.sha256": run.samples_sha256 for run in groups[name]}
        report = compare_evaluations(groups, self.options)
        return (
            report,
            facts,
            comparison_metrics(report),
            verdict_table(report),
            details_table(report),
        )

    def verify(self, blobs: BlobStore) -> None:
        groups = run_groups(self.runs)
        check_design(groups, self.options)
        for run in chain.from_iterable(groups.values()):
            read_run(blobs, run_of(run))


def _check_are_runs(runs: Sequence[str]) -> None:
    """Raise ConfigError for weights, such as RUN@best, in place of a run."""
    for text in runs:
        if "@" in run_of(text) or text.startswith("run:"):
            weights = text.removeprefix("run:")
            raise ConfigError(
                f"runs: {text!r} names weights, and runs are compared by their final evaluations: "
                f"run `kitchen eval {weights}`, and compare the run that it starts"
            )


def run_groups(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the runs of each group: `RUN` is a group of one run, `NAME=RUN,RUN` has several.

    Raises ConfigError for fewer than two groups, and for a name or run that occurs twice.
    """
    groups: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for text in texts:
        name, is_group, members = text.partition("=")
        runs = tuple(run.strip() for run in (members if is_group else name).split(","))
        if not all((name, *runs)) or (len(runs) > 1 and not is_group):
            raise ConfigError(
                f"runs: {text!r} must be the name of a run, or NAME=RUN,RUN for a group of runs "
                "that differ in their seed"
            )
        if VERSUS in name:
            raise ConfigError(f"runs: the name of group {name!r} contains {VERSUS!r}: rename it")
        _check_are_runs(runs)
        again = name if name in groups else next((run for run in runs if run in seen), "")
        if again or len(set(runs)) < len(runs):
            raise ConfigError(f"runs: {again or text!r} occurs twice: give each run once")
        groups[name] = runs
        seen |= {*runs}
    if len(groups) < 2:
        given = f"there is only {next(iter(groups))!r}" if groups else "there is none"
        raise ConfigError(f"runs: a comparison needs at least two runs or groups, and {given}")
    return groups

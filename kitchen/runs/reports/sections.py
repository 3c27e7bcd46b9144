"""Blocks that reports and model cards share: curves, evaluations, facts and tables of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from kitchen.runs.reports.content import Block, Curves, DataTable, Section
from kitchen.runs.reports.records import RunRecord
from kitchen.types import Table

_INTERVAL = "95 % interval"  # in the titles of tables of evaluations
_TARGETS = "Quality targets"
_VERDICT = "Verdict"
# panels of curves: caption, unit, and its metrics; the existing ones are drawn
_PANELS: Sequence[tuple[str, str, Sequence[str]]] = (
    ("Loss", "loss", ("loss", "held_out_loss")),
    ("Reward", "reward", ("reward", "held_out_reward")),
    ("Learning rate", "learning rate", ("learning_rate",)),
    ("Gradient norm", "gradient norm", ("grad_norm",)),
)


def sections(title: str, blocks: Sequence[Block]) -> Sequence[Section]:
    """Return a section, or none if it has no content."""
    return [Section(title, blocks)] if blocks else []


def curves(runs: Sequence[RunRecord], groups: Mapping[str, str]) -> Sequence[Curves]:
    """Return the panels of curves that the runs have; `groups` are group names by run."""
    blocks: list[Curves] = []
    for caption, unit, metrics in _PANELS:
        blocks += _panels(runs, caption, unit, metrics, groups)
    return blocks


def speed(runs: Sequence[RunRecord], groups: Mapping[str, str]) -> Sequence[Curves]:
    """Return the panel of tokens per second, if it has any curves."""
    return _panel("Speed", "tokens/s", {run.name: run.speed() for run in runs}, groups)


def _panels(
    runs: Sequence[RunRecord],
    caption: str,
    unit: str,
    metrics: Sequence[str],
    groups: Mapping[str, str],
) -> Iterator[Curves]:
    """Yield one panel with all metrics of a single run, or one for each metric of several."""
    if len(runs) == 1:
        series = {_words(name): runs[0].series(name) for name in metrics}
        yield from _panel(caption, unit, series, groups)
        return
    for name in metrics:
        series = {run.name: run.series(name) for run in runs}
        yield from _panel(_words(name).capitalize(), unit, series, groups)


def _panel(
    caption: str, unit: str, series: Mapping[str, Sequence[Any]], groups: Mapping[str, str]
) -> Sequence[Curves]:
    drawn = {name: points for name, points in series.items() if len(points) > 1}
    return [Curves(caption, unit, drawn, groups)] if drawn else []


def _words(metric: str) -> str:
    return metric.replace("_", "-" if metric.startswith("held_out") else " ", 1).replace("_", " ")


def is_evaluation(table: Table) -> bool:
    """Return whether a table has the scores of an evaluation, with intervals."""
    if is_target(table) or is_verdict(table):
        return False
    return _INTERVAL in table.title or "measure" in table.columns


def is_verdict(table: Table) -> bool:
    """Return whether a table is the result of recipes.compare."""
    return table.title == _VERDICT


def is_target(table: Table) -> bool:
    return table.title.startswith(_TARGETS)


def last_tables(run: RunRecord, wanted: Callable[[Table], bool]) -> Sequence[DataTable]:
    """Return the last table of each title of a run."""
    last = {table.title: table for table in run.tables if wanted(table)}
    return [DataTable(table.title, table.columns, table.rows) for table in last.values()]


def facts(runs: Sequence[RunRecord]) -> Sequence[DataTable]:
    """Return the facts that differ between the runs, if any do, and the common ones."""
    of_runs = {run.name: run.record["facts"] for run in runs}
    names = list(dict.fromkeys(chain.from_iterable(of_runs.values())))
    shared = [name for name in names if len({str(of.get(name)) for of in of_runs.values()}) == 1]
    others = [name for name in names if name not in shared]
    blocks: list[DataTable] = []
    if others:
        rows = rows_of(of_runs, others)
        blocks.append(DataTable("Facts that differ", ("run", *others), rows, folded=True))
    same = [(name, str(of_runs[runs[0].name][name])) for name in shared]
    return [*blocks, DataTable("Facts", ("fact", "value"), same, folded=True)]


def rows_of(
    values: Mapping[str, Mapping[str, Any]], columns: Sequence[str]
) -> Sequence[tuple[str, ...]]:
    """Return a row for each name: the name, and its values in these columns."""
    return [(name, *_cells(of, columns)) for name, of in values.items()]


def _cells(values: Mapping[str, Any], columns: Sequence[str]) -> Sequence[str]:
    return [str(values.get(column, "")) for column in columns]

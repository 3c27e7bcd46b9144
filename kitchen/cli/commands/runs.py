"""`kitchen runs list`, `show` and `export`: the recorded runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from kitchen.cli.commands.json_output import print_files, print_json
from kitchen.cli.console import console, print_wrapped, table
from kitchen.cli.curves import run_curves
from kitchen.config.adapter_choice import (
    DEFAULT_RUNS_FOLDER,
    AdapterChoice,
    check_run_name,
    open_blobs,
)
from kitchen.config.order import adapter_rows, nested_value
from kitchen.errors import ConfigError
from kitchen.ports import BlobStore
from kitchen.recipe import Recipe
from kitchen.runs.parquet import export_parquet
from kitchen.runs.store import RunSummary, list_runs, read_journal, read_run, run_summary
from kitchen.runs.wording import clock, result_of, tracker_text
from kitchen.secrets import printable
from kitchen.types import Table

_MAX_SHOWN = 50  # lines
_STARTED = "started, UTC"
_COLUMNS = ("run", "recipe", "status", _STARTED, "took", "result")
_DROPPED_FIRST = ("took", _STARTED, "recipe")  # on a narrow terminal; rows are by time
_RESULT_WIDTH = 24  # characters of a result that other columns leave room for


def list_all_runs(adapters: AdapterChoice, *, json: bool) -> int:
    """Print one line per run: the newest ones, newest first, or with `json` all of them."""
    runs = list_runs(open_blobs(adapters))
    if json:
        print_json([vars(run) for run in runs])
        return 0
    if not runs:
        text = f"there are no runs in {printable(adapters.runs or DEFAULT_RUNS_FOLDER)}"
        console().print(f"{text}; `kitchen run recipes.sl_basic` starts one", soft_wrap=True)
        return 0
    newest_first = sorted(runs, key=lambda run: run.started, reverse=True)
    print_runs(console(), newest_first[:_MAX_SHOWN])
    if len(runs) > _MAX_SHOWN:
        text = f"{len(runs) - _MAX_SHOWN:,} older runs are not shown; --json lists all of them"
        console().print(text, soft_wrap=True)
    return 0


def print_runs(out: Console, runs: Sequence[RunSummary]) -> None:
    """Print the columns that fit on a terminal, none of them folded; all of them elsewhere."""
    rows = [_row(run) for run in runs]
    if out.is_terminal:
        rows = [{**row, _STARTED: row[_STARTED][len("2026-") :]} for row in rows]
    widths = {name: _column_width(name, rows) for name in _COLUMNS}
    if out.is_terminal:
        widths["result"] = min(widths["result"], _RESULT_WIDTH)
    columns = list(_COLUMNS)
    for name in _DROPPED_FIRST:
        if out.is_terminal and _width(widths, columns) > out.width:
            columns.remove(name)
    if out.is_terminal:  # long reasons and names are cut
        last = columns[-1]
        room = max(out.width - _width(widths, columns[:-1]) - 2, len(last))
        rows = [{**row, last: _cut(row[last], room)} for row in rows]
    else:
        out.width = max(out.width, _width(widths, columns))
    cells = tuple(itemgetter(*columns)(row) for row in rows)
    out.print(table(Table("Runs", tuple(columns), cells)))


def _column_width(name: str, rows: Sequence[Mapping[str, str]]) -> int:
    return max(len(name), *(len(row[name]) for row in rows))


def _width(widths: Mapping[str, int], columns: Sequence[str]) -> int:
    """Return the characters of these columns in a table, with the spaces between them."""
    return sum(widths[name] + 2 for name in columns) - 1


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: max(length - 1, 0)]}…"


def _row(run: RunSummary) -> Mapping[str, str]:
    """Return the cells of a run, by column."""
    module = run.recipe.partition(":")[0]
    return {
        "run": run.id,
        "recipe": module.removeprefix("recipes."),
        "status": run.status,
        _STARTED: run.started[:16].replace("T", " "),
        "took": clock(run.seconds),
        "result": run.reason if run.status == "unreadable" else result_of(run.metrics),
    }


def show_run(name: str, adapters: AdapterChoice, *, json: bool) -> int:
    """Print the outcome of a run, its settings, adapters, facts, metrics, weights and curves."""
    blobs = open_blobs(adapters)
    run = check_run_name(name)
    summary = run_summary(blobs, run)
    record = read_run(blobs, run)
    where = blobs.locate(f"{run}/run.json").removesuffix("/run.json")
    checkpoints = _checkpoints(blobs, run)
    if json:
        print_json({**record, **vars(summary), "where": where, "checkpoints": checkpoints})
        return 0
    weights = [_weights_row(run, saved, blobs) for saved in checkpoints]
    for shown in _tables(summary, record, where, weights):
        if shown.rows:
            console().print(table(shown))
            console().print()
    _print_curves(console(), blobs, run)
    return 0


def export_run(
    name: str, adapters: AdapterChoice, out: Path | None, *, parquet: bool, json: bool
) -> int:
    """Write the journals of a run into a new folder, and print where they are."""
    if not parquet:
        raise ConfigError("name the format of the files: --parquet")
    blobs, run = open_blobs(adapters), check_run_name(name)
    read_run(blobs, run)
    paths = export_parquet(blobs, run, out or Path(f"{run}-parquet"))
    print_files(paths, json=json)
    return 0


def _print_curves(out: Console, blobs: BlobStore, run: str) -> None:
    lines = run_curves(blobs, run, Recipe.headline, out.encoding)
    if lines:
        out.print("Curves", style="bold")
    for line in lines:
        print_wrapped(out, line)


def _tables(
    summary: RunSummary, record: Mapping[str, Any], where: str, weights: list[tuple[str, ...]]
) -> list[Table]:
    metrics = [(name, _number(value)) for name, value in summary.metrics.items()]
    facts = [(name, str(value)) for name, value in record["facts"].items()]
    return [
        _outcome(summary, len(record["attempts"]), where),
        _settings(record["order"]),
        _adapters(record["order"]),
        _trackers(record),
        Table("Facts", ("fact", "value"), tuple(facts)),
        Table("Last metrics", ("metric", "value"), tuple(metrics)),
        Table("Weights", ("role", "step", "where"), tuple(weights)),
    ]


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value)


def _outcome(summary: RunSummary, attempts: int, where: str) -> Table:
    rows = [
        ("recipe", summary.recipe),
        ("status", summary.status),
        ("started", summary.started),
        ("took", clock(summary.seconds)),
        ("attempts", str(attempts)),
        ("where", where),
    ]
    if summary.reason:
        rows.append(("reason", summary.reason))
    return Table(f"Run {summary.id}", ("property", "value"), tuple(rows))


def _settings(order: Mapping[str, Any]) -> Table:
    from kitchen.config.yaml import yaml_value  # takes long to import, and the list needs none

    rows = [
        (key, yaml_value(nested_value(order["settings"], key)), source)
        for key, source in order["sources"].items()
    ]
    return Table("Settings", ("setting", "value", "from"), tuple(rows))


def _adapters(order: Mapping[str, Any]) -> Table:
    return Table("Adapters", ("port", "adapter", "settings"), tuple(adapter_rows(order)))


def _trackers(record: Mapping[str, Any]) -> Table:
    outcomes = record.get("trackers", {})
    rows = [
        (name, tracker_text(outcomes[name]) if name in outcomes else "")
        for name in record["order"].get("observers", {})
    ]
    return Table("Trackers", ("tracker", "received"), tuple(rows))


def _checkpoints(blobs: BlobStore, run: str) -> list[dict[str, Any]]:
    return list(read_journal(blobs, run, "checkpoints"))


def _weights_row(run: str, saved: Mapping[str, Any], blobs: BlobStore) -> tuple[str, ...]:
    """Return the cells of exported weights; those in the run's folder may be deleted by now."""
    path = saved["path"]
    deleted = path.startswith(f"{run}/") and not any(blobs.list(f"{path}/"))
    where = "deleted, because of the setting keep" if deleted else saved["at"]
    return saved["role"], str(saved["step"]), where

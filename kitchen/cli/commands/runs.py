"""`kitchen runs list` and `kitchen runs show`: the recorded runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kitchen.cli.commands.json_output import as_json
from kitchen.cli.console import console, table
from kitchen.config.adapter_choice import (
    DEFAULT_RUNS_FOLDER,
    AdapterChoice,
    check_run_name,
    open_blobs,
)
from kitchen.config.order import adapter_rows, nested_value
from kitchen.ports import BlobStore
from kitchen.runs.store import RunSummary, list_runs, read_journal, read_run, run_summary
from kitchen.runs.wording import clock
from kitchen.secrets import printable
from kitchen.types import Table

_MAX_SHOWN = 50  # lines


def list_all_runs(adapters: AdapterChoice, *, json: bool) -> int:
    """Print one line per run: the newest ones, newest first, or with `json` all of them."""
    runs = list_runs(open_blobs(adapters))
    if json:
        print(as_json([vars(run) for run in runs]))
        return 0
    if not runs:
        text = f"there are no runs in {printable(adapters.runs or DEFAULT_RUNS_FOLDER)}"
        console().print(f"{text}; `kitchen run recipes.sl_basic` starts one", soft_wrap=True)
        return 0
    columns = ("run", "status", "started, UTC", "took", "last")
    newest_first = sorted(runs, key=lambda run: run.started, reverse=True)
    shown = tuple(map(_row, newest_first[:_MAX_SHOWN]))
    console().print(table(Table("Runs", columns, shown)))
    if len(runs) > _MAX_SHOWN:
        text = f"{len(runs) - _MAX_SHOWN:,} older runs are not shown; --json lists all of them"
        console().print(text, soft_wrap=True)
    return 0


def _row(run: RunSummary) -> tuple[str, ...]:
    loss = run.metrics.get("loss")
    last = f"loss {loss:.4g}" if isinstance(loss, (int, float)) else ""
    if run.status == "unreadable":
        last = run.reason
    started = run.started[:16].replace("T", " ")
    return run.id, run.status, started, clock(run.seconds), last


def show_run(name: str, adapters: AdapterChoice, *, json: bool) -> int:
    """Print the outcome of a run, its settings, adapters, facts, metrics and weights."""
    blobs = open_blobs(adapters)
    run = check_run_name(name)
    summary = run_summary(blobs, run)
    record = read_run(blobs, run)
    where = blobs.locate(f"{run}/run.json").removesuffix("/run.json")
    checkpoints = _checkpoints(blobs, run)
    if json:
        print(as_json({**record, **vars(summary), "where": where, "checkpoints": checkpoints}))
        return 0
    for shown in _tables(summary, record, where, checkpoints):
        if shown.rows:
            console().print(table(shown))
            console().print()
    return 0


def _tables(
    summary: RunSummary, record: Mapping[str, Any], where: str, checkpoints: list[dict[str, Any]]
) -> list[Table]:
    metrics = [(name, _number(value)) for name, value in summary.metrics.items()]
    weights = [(saved["role"], str(saved["step"]), saved["at"]) for saved in checkpoints]
    facts = [(name, str(value)) for name, value in record["facts"].items()]
    return [
        _outcome(summary, len(record["attempts"]), where),
        _settings(record["order"]),
        _adapters(record["order"]),
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


def _checkpoints(blobs: BlobStore, run: str) -> list[dict[str, Any]]:
    return list(read_journal(blobs, run, "checkpoints"))

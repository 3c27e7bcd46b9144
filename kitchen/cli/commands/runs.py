"""`kitchen runs list` and `kitchen runs show`."""

from __future__ import annotations

import json as json_
from collections.abc import Mapping
from typing import Any

from kitchen.cli.commands.failure import as_json
from kitchen.cli.console import clock, console, table
from kitchen.config.request import AdapterChoice, check_run_name, open_blobs
from kitchen.config.yaml import yaml_value
from kitchen.ports import BlobStore
from kitchen.runs.store import RunSummary, list_runs, read_run, run_summary
from kitchen.types import Table


def show_all(adapter_choice: AdapterChoice, *, json: bool) -> int:
    """One line per run."""
    found = list_runs(open_blobs(adapter_choice))
    if json:
        print(as_json([vars(each) for each in found]))
    elif not found:
        console().print("there are no runs here; `kitchen run recipes.sl_basic` makes one")
    else:
        rows = tuple(
            (
                one.id,
                one.status,
                one.started[:16].replace("T", " "),
                clock(one.seconds),
                _shown(one),
            )
            for one in found
        )
        console().print(
            table(Table("Runs", ("run", "status", "started, UTC", "took", "last"), rows))
        )
    return 0


def show_one(run: str, adapter_choice: AdapterChoice, *, json: bool) -> int:
    """How a run went, and what it was made of."""
    blobs, run = open_blobs(adapter_choice), check_run_name(run)
    summary, record = run_summary(blobs, run), read_run(blobs, run)
    where = blobs.locate(f"{run}/run.json").removesuffix("/run.json")
    checkpoints = _checkpoints(blobs, run)
    if json:
        print(as_json({**record, **vars(summary), "where": where, "checkpoints": checkpoints}))
        return 0
    for shown in _tables(summary, record, where, checkpoints):
        console().print(table(shown))
        console().print()
    return 0


def _tables(
    summary: RunSummary, record: Mapping[str, Any], where: str, checkpoints: list[dict[str, Any]]
) -> list[Table]:
    order = record["order"]
    head = [
        ("recipe", summary.recipe),
        ("status", summary.status),
        ("started", summary.started),
        ("took", clock(summary.seconds)),
        ("attempts", str(len(record["attempts"]))),
        ("where", where),
    ]
    head += [("reason", summary.reason)] * bool(summary.reason)
    settings = tuple(
        (key, yaml_value(_at(order["settings"], key)), source)
        for key, source in order["sources"].items()
    )
    adapters = tuple(
        (
            port,
            name,
            ", ".join(
                f"{key}={yaml_value(value)}"
                for key, value in order["adapter_settings"].get(port, {}).items()
            ),
        )
        for port, name in order["adapters"].items()
    )
    made = [
        Table(f"Run {summary.id}", ("what", "is"), tuple(head)),
        Table("Settings", ("setting", "value", "from"), settings),
        Table("Adapters", ("port", "adapter", "with"), adapters),
        Table(
            "Facts",
            ("what", "is"),
            tuple((key, str(value)) for key, value in record["facts"].items()),
        ),
        Table(
            "Last metrics",
            ("metric", "value"),
            tuple((key, f"{one:.6g}") for key, one in summary.metrics.items()),
        ),
        Table(
            "Weights",
            ("role", "step", "where"),
            tuple((c["role"], str(c["step"]), c["at"]) for c in checkpoints),
        ),
    ]
    return [each for each in made if each.rows]


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else values
    return values


def _checkpoints(blobs: BlobStore, run: str) -> list[dict[str, Any]]:
    return [
        json_.loads(line) for line in (blobs.read(f"{run}/checkpoints.jsonl") or b"").splitlines()
    ]


def _shown(run: RunSummary) -> str:
    if run.status == "unreadable":
        return run.reason
    return f"loss {run.metrics['loss']:.4g}" if "loss" in run.metrics else ""

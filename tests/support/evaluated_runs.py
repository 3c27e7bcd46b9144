"""Records of evaluated runs, written as the recipes write them, without running any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kitchen.ports import BlobStore
from kitchen.runs.store import write_run

ORDER = {
    "recipe": "recipes.evaluate:Evaluate",
    "settings": {},
    "sources": {},
    "adapters": {},
    "adapter_settings": {},
    "objects": [],
}
Scores = Mapping[str, float | None]


def write_evaluated_run(
    blobs: BlobStore,
    run: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    status: str = "completed",
    reason: str = "",
    facts: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a run with these rows in samples.jsonl; its data has a digest unless facts say else."""
    record = {
        "run": run,
        "recipe": ORDER["recipe"],
        "order": {**ORDER, "settings": dict(settings or {})},
        "attempts": [{"started": "2026-11-27T20:00:00.000+00:00", "seconds": 1.0}],
        "facts": {"data.test.sha256": "a" * 64} if facts is None else dict(facts),
        "metrics": {},
        "rendering": {},
        "status": status,
        "reason": reason,
    }
    write_run(blobs, run, record)
    lines = [json.dumps(row) for row in rows]
    blobs.write(f"{run}/samples.jsonl", "".join(f"{line}\n" for line in lines).encode())


def scored_rows(
    scores: Sequence[Scores | float | None], /, *, measure: str = "exact_match", **fields: Any
) -> list[dict[str, Any]]:
    """Return one row for each item: its scores, or one score of the measure, or None if it failed.

    `fields` replace those of every row.
    """
    rows = []
    for at, given in enumerate(scores):
        failed = "" if given is not None else "the grader timed out"
        of_item = given if isinstance(given, Mapping) else {measure: given}
        row = {
            "n": 0,
            "stage": "EvaluateCheckpoint",
            "step": 0,
            "set": "test",
            "row": at,
            "try": 0,
            "where": f"rows.jsonl:{at + 1}",
            "item": f"{at:016x}",
            "columns": {"document": at // 4},
            "scores": {} if failed else dict(of_item),
            "failed": failed,
        }
        rows.append({**row, **fields})
    return rows

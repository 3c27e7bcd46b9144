"""Scores that runs have recorded for their final weights, by held-out set, measure and item."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from kitchen.errors import ConfigError, DataError
from kitchen.ports import BlobStore
from kitchen.runs.jsonl import read_lines
from kitchen.runs.store import parse_journal, read_run, run_summary

# measures that are ratios of sums: numerator, factor, denominator
RATIOS: Mapping[str, tuple[str, float, str]] = {
    "loss": ("nats", 1.0, "tokens"),
    "bits_per_byte": ("nats", 1 / math.log(2), "bytes"),
}
BEFORE = "@before"  # after the name of a run: the weights that it started from
_RATIO_PARTS = {"nats", "tokens", "bytes"}
_KINDS: Mapping[str, type] = {"item": str, "set": str, "scores": dict, "columns": dict}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Scored:
    """The scores of a run on one measure of one set, by item."""

    values: Mapping[str, float]  # the mean over tries; the numerator of a ratio
    sizes: Mapping[str, float] | None  # the denominator of a ratio, such as tokens
    failed: int  # items that failed
    unscored: int  # items that did not fail, and for which this measure is not defined
    rows: Mapping[str, Row]  # the first row of each item in samples.jsonl


@dataclass(frozen=True)
class RecordedEvaluation:
    """The evaluation of a run's final weights."""

    run: str
    sets: Mapping[str, Mapping[str, Scored]]  # by set and measure
    facts: Mapping[str, str]  # of the run
    samples_sha256: str
    note: str = ""  # if the run did not complete
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the recipe

    def data_digest(self, name: str) -> str | None:
        """Return the SHA-256 of the data that a set comes from; None for generated problems."""
        prefix, _, split = name.rpartition("/")
        dataset = f"data.{prefix}." if prefix else "data."
        if digest := self.facts.get(f"{dataset}{split}.sha256"):
            return digest
        for key in self.facts:  # rows held out of the training split
            if key.startswith(dataset) and key.endswith(".dataset"):
                return self.facts.get(f"{key.removesuffix('.dataset')}.sha256")
        return None


def run_of(name: str) -> str:
    """Return the run of `RUN` or `RUN@before`."""
    return name.removesuffix(BEFORE)


def read_evaluation(blobs: BlobStore, name: str) -> RecordedEvaluation:
    """Read the final evaluation of `RUN`, or with `RUN@before` the one before its training.

    Raises ConfigError or DataError if there is none.
    """
    run = run_of(name)
    when = "after" if name == run else "before"
    summary = run_summary(blobs, run)
    if summary.status == "running":
        raise DataError(f"run {run!r} is still running: compare it when it is completed")
    if summary.status == "killed":
        raise DataError(
            f"run {run!r} was killed, so its evaluation may not be complete: `kitchen resume {run}`"
        )
    lines = read_lines(blobs, f"{run}/samples.jsonl")
    rows = [row for row in parse_journal(blobs, run, "samples", lines) if _is_of(row, when)]
    if not rows and when == "before":
        raise DataError(
            f"run {run!r} has no scores of held-out items before its training: its recipe does not "
            "evaluate the weights that it starts from, or its settings skip that"
        )
    if not rows:
        raise DataError(_no_evaluation(run, summary.status))
    for row in rows:
        _check_row(row, blobs.locate(f"{run}/samples.jsonl"))
    note = ""
    if summary.status != "completed":
        note = f"run {run} ended as {summary.status} after its evaluation: {summary.reason}"
    digest = hashlib.sha256(b"\n".join(lines)).hexdigest()
    record = read_run(blobs, run)
    settings = record["order"]["settings"]
    return RecordedEvaluation(name, _by_set(rows), record["facts"], digest, note, settings)


def _is_of(row: Row, when: str) -> bool:
    """Return whether a row is of the evaluation before or after training."""
    return "item" in row and row.get("when", "after") == when


def _no_evaluation(run: str, status: str) -> str:
    if status == "completed":
        return (
            f"run {run!r} has no scores of held-out items in samples.jsonl: evaluate its weights, "
            f"`kitchen eval {run} --dataset NAME`, and compare that run"
        )
    ended = "was interrupted" if status == "interrupted" else status
    return f"run {run!r} {ended} before its final evaluation: `kitchen resume {run}`"


def _check_row(row: Row, file: str) -> None:
    """Raise ConfigError for a row of an evaluation that does not have the recorded form."""
    wrong = next((key for key, kind in _KINDS.items() if not isinstance(row.get(key), kind)), "")
    numbers = row["scores"].values() if not wrong else ()
    if any(not isinstance(number, int | float | None) for number in numbers):
        wrong = "scores"
    if wrong:
        raise ConfigError(
            f"{file}: the row of item {row.get('item')!r} has no {wrong!r} of the right type: the "
            "file was edited, or another version of crucible-kitchen wrote it"
        )


def _by_set(rows: Sequence[Row]) -> Mapping[str, Mapping[str, Scored]]:
    """Return the scores of the last evaluation of each set, by set and measure."""
    evaluations: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        of_stage = evaluations.setdefault((row["set"], str(row.get("stage"))), [])
        if of_stage and of_stage[0].get("n") != row.get("n"):
            of_stage.clear()  # of earlier weights
        of_stage.append(row)
    sets: dict[str, dict[str, Scored]] = {}
    for (name, _), of_stage in evaluations.items():
        sets.setdefault(name, {}).update(_by_measure(of_stage))
    return sets


def _by_measure(rows: Sequence[Row]) -> Iterator[tuple[str, Scored]]:
    """Yield the measures of rows that one stage has written for one set."""
    names = list(dict.fromkeys(chain.from_iterable(row["scores"] for row in rows)))
    for name, (numerator, factor, denominator) in RATIOS.items():
        if numerator in names and denominator in names:
            yield name, _ratio(rows, numerator, factor, denominator)
    for name in names:
        if name not in _RATIO_PARTS:
            yield name, _mean(rows, name)


def _mean(rows: Sequence[Row], name: str) -> Scored:
    tries: dict[str, list[float]] = {}
    for row in rows:
        score = row["scores"].get(name)
        tries.setdefault(row["item"], []).extend([] if _missing(score) else [float(score)])
    values = {item: sum(scores) / len(scores) for item, scores in tries.items() if scores}
    return Scored(values, None, *_without_score(rows, values, (name,)), _first_rows(rows))


def _ratio(rows: Sequence[Row], numerator: str, factor: float, denominator: str) -> Scored:
    values: dict[str, float] = {}
    sizes: dict[str, float] = {}
    items = set()
    for row in rows:
        item, part, size = row["item"], *(row["scores"].get(n) for n in (numerator, denominator))
        if size == 0:
            continue  # none of its tokens are trained on
        items.add(item)
        if not _missing(part) and not _missing(size):
            values[item] = values.get(item, 0.0) + factor * part
            sizes[item] = sizes.get(item, 0.0) + size
    of_items = [row for row in rows if row["item"] in items]
    without = _without_score(of_items, values, (numerator, denominator))
    return Scored(values, sizes, *without, _first_rows(rows))


def _without_score(
    rows: Sequence[Row], values: Mapping[str, float], names: Sequence[str]
) -> tuple[int, int]:
    """Count the items without a value that failed, and those for which there is no such score.

    A score that is null or not finite is that of an item that failed.
    """
    others = {row["item"] for row in rows} - values.keys()
    failed = {row["item"] for row in rows if row.get("failed") or _is_broken(row, names)} & others
    return len(failed), len(others) - len(failed)


def _is_broken(row: Row, names: Sequence[str]) -> bool:
    return any(name in row["scores"] and _missing(row["scores"][name]) for name in names)


def _missing(score: float | None) -> bool:
    return score is None or not math.isfinite(score)


def _first_rows(rows: Sequence[Row]) -> Mapping[str, Row]:
    return {row["item"]: row for row in reversed(rows)}

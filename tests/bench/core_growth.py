"""Cost of a slice of a data set, which must not depend on the size of the data set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.figures import Figure, Ratio
from tests.bench.outcome import Goal, Reported, to_reach
from tests.bench.results import DROPPED, Order, Result
from tests.support.peak_memory import jsonl_rows, peak_memory

SMALL, LARGE = 1_000, 1_000_000  # rows
STEPS, BATCH = 200, 4  # so that one epoch of the small set is enough
PAIRS = {"fake": 9, "peft": 3}  # of runs
ROOM = Goal(1.1, 1.0, at_most=True)
SPEED = Goal(0.9, 1.0)
ABOUT = (
    f"recipes.sl_basic, {STEPS} steps of {BATCH} rows of a JSONL file, each run in a process of "
    "its own; tokens/s in the loop, without the dropped steps; memory is the process's peak",
    "an engine gets a step's datums and never sees how many rows there are; on the fake nothing "
    "else hides what the rows cost: beside a real model the same megabytes are a smaller share",
)


@dataclass(frozen=True)
class Slice:
    """The time and memory of one run."""

    rate: float  # tokens a second
    peak: float  # MB
    steps: int


def growth(order: Order, training: str) -> Result:
    """Compare tokens per second and memory for the same steps on a small and on a large file."""
    _write_files(order.folder)
    runs = _run_slices(order, training)
    rate = Ratio.of(_rates(runs[LARGE]), _rates(runs[SMALL]))
    memory = Ratio.of(_peaks(runs[LARGE]), _peaks(runs[SMALL]))
    sound = all(run.steps == STEPS for run in (*runs[SMALL], *runs[LARGE]))
    reported = (
        Reported("tokens/s of a million rows to a thousand", rate.of_medians, rate.shown(), SPEED),
        Reported("memory of a million rows to a thousand", memory.of_medians, memory.shown(), ROOM),
    )
    work = f"growth_{training}"
    summary = {
        "work": work,
        "speed": rate.of_medians,
        "memory": memory.of_medians,
        "sound": sound,
    }
    return Result(
        work,
        f"{STEPS} steps out of a thousand and out of a million rows, on {training}",
        ("rows", "tokens/s, median [quartiles]", "peak MB"),
        tuple(_row(rows, taken) for rows, taken in runs.items()),
        (
            *(figure.note for figure in reported),
            f"all runs took {STEPS} steps: {'yes' if sound else 'NO'}",
            *ABOUT,
        ),
        (*(_record(work, rows, taken) for rows, taken in runs.items()), summary),
        sound,
        to_reach(reported),
    )


def _write_files(folder: Path) -> None:
    """Write both files, with rows of the same lengths."""
    large = jsonl_rows(LARGE).splitlines(keepends=True)
    for rows in (SMALL, LARGE):
        (folder / _file(rows)).write_text("".join(large[:: LARGE // rows]))


def _run_slices(order: Order, training: str) -> dict[int, list[Slice]]:
    """Run pairs of slices; return the runs of each size in their order."""
    options = ("--training", training, f"model={order.model}")
    runs: dict[int, list[Slice]] = {SMALL: [], LARGE: []}
    for number in range(order.pairs or PAIRS[training]):
        for rows, taken in runs.items():
            name = f"slice-{training}-{rows}-{number}"
            taken.append(run_slice(order.folder, rows, name, *options))
    return runs


def _rates(runs: Sequence[Slice]) -> list[float]:
    return [run.rate for run in runs]


def _peaks(runs: Sequence[Slice]) -> list[float]:
    return [run.peak for run in runs]


def _row(rows: int, runs: Sequence[Slice]) -> tuple[str, ...]:
    rate, peak = Figure.of(_rates(runs)), Figure.of(_peaks(runs))
    return f"{rows:,}", rate.shown(0), peak.shown(1)


def _record(work: str, rows: int, runs: Sequence[Slice]) -> dict[str, Any]:
    return {
        "work": work,
        "rows": rows,
        "tokens_per_second": _rates(runs),
        "peak_mb": _peaks(runs),
    }


def run_slice(folder: Path, rows: int, name: str, *options: str, steps: int = STEPS) -> Slice:
    """Run a slice of the file in the folder."""
    megabytes = peak_memory(
        folder,
        f"dataset={_file(rows)}",
        f"max_steps={steps}",
        f"batch_size={BATCH}",
        "eval_every=0",
        "--name",
        name,
        *options,
    )
    reported = [
        json.loads(line)
        for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    ]
    taken: list[Mapping[str, float]] = [row for row in reported if row["stage"] == "ReportStep"]
    kept = taken[DROPPED:]
    seconds = kept[-1]["seconds"] - taken[DROPPED - 1]["seconds"]
    return Slice(sum(row["tokens"] for row in kept) / seconds, megabytes, len(taken))


def _file(rows: int) -> str:
    return f"rows-{rows}.jsonl"

"""Cost of a slice of a data set, which must not depend on the size of the data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
    "else hides what "
    "the rows cost: beside a real model the same megabytes are a smaller share",
)


@dataclass(frozen=True)
class Slice:
    """The time and memory of one run."""

    rate: float  # tokens a second
    peak: float  # MB
    steps: int


def growth(order: Order, training: str) -> Result:
    """Compare tokens per second and memory for the same steps on a small and on a large file."""
    large = jsonl_rows(LARGE).splitlines(keepends=True)
    for rows in (SMALL, LARGE):  # of the same lengths
        (order.folder / _file(rows)).write_text("".join(large[:: LARGE // rows]))
    runs: dict[int, list[Slice]] = {SMALL: [], LARGE: []}
    for number in range(order.pairs or PAIRS[training]):
        for rows, taken in runs.items():
            taken.append(
                run_slice(
                    order.folder,
                    rows,
                    f"slice-{training}-{rows}-{number}",
                    "--training",
                    training,
                    f"model={order.model}",
                )
            )
    rate = Ratio.of([each.rate for each in runs[LARGE]], [each.rate for each in runs[SMALL]])
    memory = Ratio.of([each.peak for each in runs[LARGE]], [each.peak for each in runs[SMALL]])
    sound = all(each.steps == STEPS for taken in runs.values() for each in taken)
    reported = (
        Reported("tokens/s of a million rows to a thousand", rate.of_medians, rate.shown(), SPEED),
        Reported("memory of a million rows to a thousand", memory.of_medians, memory.shown(), ROOM),
    )
    notes = (
        *(one.note for one in reported),
        f"all runs took {STEPS} steps: {'yes' if sound else 'NO'}",
        *ABOUT,
    )
    rows_ = tuple(
        (
            f"{rows:,}",
            Figure.of([each.rate for each in taken]).shown(0),
            Figure.of([each.peak for each in taken]).shown(1),
        )
        for rows, taken in runs.items()
    )
    records = (
        *(
            {
                "work": f"growth_{training}",
                "rows": rows,
                "tokens_per_second": [each.rate for each in taken],
                "peak_mb": [each.peak for each in taken],
            }
            for rows, taken in runs.items()
        ),
        {
            "work": f"growth_{training}",
            "speed": rate.of_medians,
            "memory": memory.of_medians,
            "sound": sound,
        },
    )
    return Result(
        f"growth_{training}",
        f"{STEPS} steps out of a thousand and out of a million rows, on {training}",
        ("rows", "tokens/s, median [quartiles]", "peak MB"),
        rows_,
        notes,
        records,
        sound,
        to_reach(reported),
    )


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

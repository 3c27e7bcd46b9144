"""Cost of training on a few rows, which must not depend on the size of the data set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.outcome import ReportedMetric, Target, with_targets
from tests.bench.quartiles import Quartiles, Ratio
from tests.bench.results import DROPPED, Options, Result
from tests.support.peak_memory import jsonl_rows, peak_memory

SMALL, LARGE = 1_000, 1_000_000  # rows
STEPS, BATCH = 200, 4  # at most one epoch of the small file
PAIRS = {"fake": 9, "peft": 3}  # runs on each file
MEMORY = Target(1.1, 1.0, at_most=True)
SPEED = Target(0.9, 1.0)
NOTES = (
    f"recipes.sl_basic, {STEPS} steps of {BATCH} rows of a JSONL file, each in its own process; "
    "tokens/s of the loop without the first steps; memory is the peak of the process",
    "an engine gets only the datums of a step, so its cost does not depend on the number of rows; "
    "the fake adapter needs almost no memory, so the share of the rows is largest there",
)


@dataclass(frozen=True)
class RunCost:
    """Speed and peak memory of one run."""

    rate: float  # tokens/s
    peak: float  # MB
    steps: int


def growth(options: Options, training: str) -> Result:
    """Compare tokens per second and memory for the same steps on a small and on a large file."""
    _write_files(options.folder)
    runs = _run_on_both_files(options, training)
    rate = Ratio.of(_rates(runs[LARGE]), _rates(runs[SMALL]))
    memory = Ratio.of(_peaks(runs[LARGE]), _peaks(runs[SMALL]))
    sound = all(run.steps == STEPS for run in (*runs[SMALL], *runs[LARGE]))
    reported = (
        ReportedMetric(
            "tokens/s, a million rows against a thousand", rate.of_medians, rate.format(), SPEED
        ),
        ReportedMetric(
            "memory, a million rows against a thousand", memory.of_medians, memory.format(), MEMORY
        ),
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
        f"{STEPS} steps on a thousand and on a million rows, {training}",
        ("rows", "tokens/s, median [quartiles]", "peak MB"),
        tuple(_row(rows, costs) for rows, costs in runs.items()),
        (
            *(metric.note for metric in reported),
            f"all runs took {STEPS} steps: {'yes' if sound else 'NO'}",
            *NOTES,
        ),
        (*(_record(work, rows, costs) for rows, costs in runs.items()), summary),
        sound,
        with_targets(reported),
    )


def _write_files(folder: Path) -> None:
    """Write both files, with the same distribution of row lengths."""
    large = jsonl_rows(LARGE).splitlines(keepends=True)
    for rows in (SMALL, LARGE):
        (folder / _file(rows)).write_text("".join(large[:: LARGE // rows]))


def _run_on_both_files(options: Options, training: str) -> dict[int, list[RunCost]]:
    """Run the recipe on both files in turn; return the costs by number of rows."""
    arguments = ("--training", training, f"model={options.model}")
    runs: dict[int, list[RunCost]] = {SMALL: [], LARGE: []}
    for number in range(options.pairs or PAIRS[training]):
        for rows, costs in runs.items():
            name = f"slice-{training}-{rows}-{number}"
            costs.append(run_few_rows(options.folder, rows, name, *arguments))
    return runs


def _rates(runs: Sequence[RunCost]) -> list[float]:
    return [run.rate for run in runs]


def _peaks(runs: Sequence[RunCost]) -> list[float]:
    return [run.peak for run in runs]


def _row(rows: int, runs: Sequence[RunCost]) -> tuple[str, ...]:
    rate, peak = Quartiles.of(_rates(runs)), Quartiles.of(_peaks(runs))
    return f"{rows:,}", rate.format(0), peak.format(1)


def _record(work: str, rows: int, runs: Sequence[RunCost]) -> dict[str, Any]:
    return {
        "work": work,
        "rows": rows,
        "tokens_per_second": _rates(runs),
        "peak_mb": _peaks(runs),
    }


def run_few_rows(
    folder: Path, rows: int, name: str, *arguments: str, steps: int = STEPS
) -> RunCost:
    """Train on the first rows of a file in the folder."""
    megabytes = peak_memory(
        folder,
        f"dataset={_file(rows)}",
        f"max_steps={steps}",
        f"batch_size={BATCH}",
        "eval_every=0",
        "--name",
        name,
        *arguments,
    )
    metrics = [
        json.loads(line)
        for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    ]
    step_rows: list[Mapping[str, float]] = [row for row in metrics if row["stage"] == "ReportStep"]
    counted = step_rows[DROPPED:]
    seconds = counted[-1]["seconds"] - step_rows[DROPPED - 1]["seconds"]
    return RunCost(sum(row["tokens"] for row in counted) / seconds, megabytes, len(step_rows))


def _file(rows: int) -> str:
    return f"rows-{rows}.jsonl"

"""`python -m tests.results [WORK...] [--seeds N]`: run what is missing, write docs/results.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from adapters.local.blobs import LocalBlobs
from kitchen.runs.store import read_run
from kitchen.statistics.intervals import mean_interval
from tests.bench.machine import commit
from tests.results.works import WORKS, Cooking, Goal, settings_of

ROOT = Path(__file__).parents[2]
PAGE, ROWS = ROOT / "docs/results.md", ROOT / "docs/results.jsonl"
HEAD = """# Shown to learn

Each table is three runs on SmolLM2-135M-Instruct, one per seed (fewer while they are running), on a
machine with 2 cores and no GPU. Numbers are means with their 95 % intervals (Student's t over the
seeds, which ignores that a share lies between 0 and 1), all on data that was not trained on;
answers are greedy. A target for p-values or seconds holds for the largest of the seeds. All runs of
a table start from the same weights. Times are those of the run itself, with the evaluations before
and after it, without the runs that it starts from. The machine is shared, and others take half of
it for minutes: on an idle machine a time is the same or shorter.

`make results` runs what is missing or was run with other settings, resumes what was interrupted,
and writes this page; `results.jsonl` beside it has each seed. To run something again, delete its
rows there and its runs in `build/results`. A run that was interrupted has no seconds. With
`PREFERENCES=FILE` the second table is trained on pairs from a file, one JSON object per line with
`prompt`, `chosen` and `rejected`.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.results", description="What each recipe is shown to learn."
    )
    parser.add_argument(
        "works", nargs="*", metavar="WORK", help=f"all by default: {', '.join(WORKS)}"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=ROOT / "build/results")
    parser.add_argument(
        "--preferences", type=Path, help="a JSONL file of prompt, chosen, rejected, for dpo_gsm8k"
    )
    options = parser.parse_args()
    if unknown := [name for name in options.works if name not in WORKS]:
        parser.error(f"no work is called {unknown[0]!r}; there are {', '.join(WORKS)}")
    console = Console(width=120)
    stamps = {name: settings_of(name) for name in WORKS}  # now: the code may change during a run
    for name in options.works or WORKS:
        for seed in range(options.seeds):
            if any((row["work"], row["seed"]) == (name, seed) for row in current(rows(), stamps)):
                continue
            cooking = Cooking(options.runs, seed, preferences=options.preferences)
            if WORKS[name].reads_preferences and not cooking.preferences:
                console.print(f"{name}, seed {seed}: skipped, because it needs --preferences FILE")
                continue
            run, measures = WORKS[name].measure(cooking)
            attempts = read_run(LocalBlobs(str(options.runs)), run.id)["attempts"]
            row = {
                "work": name,
                "seed": seed,
                "settings": stamps[name],
                "commit": commit_of(attempts),
                **({"seconds": round(run.seconds)} if len(attempts) == 1 else {}),
                **measures,
            }
            others = [other for other in rows() if (other["work"], other["seed"]) != (name, seed)]
            write(ROWS, "".join(json.dumps(entry) + "\n" for entry in (*others, row)))
            console.print(row)
            write(PAGE, page(current(rows(), stamps)))
    return 0


def current(
    rows: Sequence[Mapping[str, Any]], stamps: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Return the rows that were measured with the current settings of their work."""
    return [row for row in rows if row.get("settings") == stamps.get(row["work"], "gone")]


def write(file: Path, text: str) -> None:
    """Write a file atomically, as blobs are written."""
    LocalBlobs(str(file.parent)).write(file.name, text.encode())


def commit_of(attempts: Sequence[Mapping[str, Any]]) -> str:
    """Return the commits of a run's attempts; the current one has a plus if files are changed."""
    commits = dict.fromkeys(attempt["git_commit"][:7] for attempt in attempts)
    current_commit = commit()
    return " and ".join(
        current_commit if current_commit.startswith(short) else short for short in commits
    )


def rows() -> Sequence[Mapping[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page in Markdown, with one table per work."""
    parts = [HEAD]
    for name, work in WORKS.items():
        by_seed = sorted(
            (row for row in rows if row["work"] == name), key=lambda row: int(row["seed"])
        )
        if not by_seed:
            continue
        names = dict.fromkeys(
            key
            for row in by_seed
            for key in row
            if key not in ("work", "seed", "settings", "commit")
        )
        goals = {**work.goals, "seconds": work.time}
        lines = [
            line(key, [row[key] for row in by_seed if key in row], goals.get(key), len(by_seed))
            for key in names
        ]
        commits = ", ".join(f"seed {row['seed']}: {row['commit']}" for row in by_seed)
        parts.append(
            "\n".join(
                [
                    f"## {work.title}",
                    "",
                    "| measure | mean | by seed | wanted |",
                    "| --- | --- | --- | --- |",
                    *lines,
                    "",
                    f"{commits}.",
                    "",
                ]
            )
        )
    return "\n".join(parts)


def line(measure: str, values: Sequence[float], goal: Goal | None, seeds: int) -> str:
    """Format one line of the table.

    P-values, seconds and ends of intervals have no mean; their goal is for the largest value.
    """
    if measure.startswith(("p of", "95 %")) or measure in ("seconds", "to"):
        value = max(values)
        mean = ""
    elif len(values) < 2:
        value = values[0]
        mean = number(value)
    else:
        interval = mean_interval(values)
        value = interval.estimate
        mean = f"{number(value)} [{number(interval.low)}, {number(interval.high)}]"
    verdict = "" if goal is None else goal.describe(value)
    if verdict and len(values) < seeds:
        verdict += f" by the {len(values)} of {seeds} seeds that have it"
    return f"| {measure} | {mean} | {', '.join(map(number, values))} | {verdict} |"


def number(value: float) -> str:
    """Format a number with three decimals, or more where those would be zero."""
    if value >= 100:
        return f"{value:.0f}"
    if 0 < abs(value) < 5e-4:
        return f"{value:.1g}"
    return f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())

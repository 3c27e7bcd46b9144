"""Results: `python -m tests.results [WORK...] [--seeds N]` runs what is missing and writes
docs/results.md.
"""

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

Each table is three runs on SmolLM2-135M-Instruct, one a seed (fewer while it is being made), on a machine with 2 cores
and no graphics card. Numbers are means with their 95 % intervals (Student's t over the seeds, which knows nothing of
what a share can be), all on data that was not trained on; answers are greedy. A p has to be small
enough for each seed, and so have the seconds. All runs of a table begin with the same weights. Times are those of the
run itself, evaluations before and after included, without the runs that it begins with; the machine has other tenants,
who take half of it for minutes: on quiet cores a time is the same, or less.

`make results` cooks what is not there yet, or was cooked with other settings, goes on with what was interrupted, and
writes this page; `results.jsonl` beside it has each seed. Delete rows there, and their runs in `build/results`, to have
them cooked again. A run that was interrupted has no seconds. With `PREFERENCES=FILE` it takes pairs of a file,
one JSON object a line with `prompt`, `chosen` and `rejected`, for the second table.
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
    # as they are now, not in an hour
    console, stamps = Console(width=120), {name: settings_of(name) for name in WORKS}
    for name in options.works or WORKS:
        for seed in range(options.seeds):
            if any((row["work"], row["seed"]) == (name, seed) for row in current(rows(), stamps)):
                continue
            cooking = Cooking(options.runs, seed, preferences=options.preferences)
            if WORKS[name].reads_preferences and not cooking.preferences:
                console.print(f"{name}, seed {seed}: left out, for it needs --preferences FILE")
                continue
            run, found = WORKS[name].measure(cooking)
            attempts = read_run(LocalBlobs(str(options.runs)), run.id)["attempts"]
            row = {
                "work": name,
                "seed": seed,
                "settings": stamps[name],
                "commit": commit_of(attempts),
                **({"seconds": round(run.seconds)} if len(attempts) == 1 else {}),
                **found,
            }
            kept = [each for each in rows() if (each["work"], each["seed"]) != (name, seed)]
            write(ROWS, "".join(json.dumps(each) + "\n" for each in (*kept, row)))
            console.print(row)
            write(PAGE, page(current(rows(), stamps)))
    return 0


def current(
    found: Sequence[Mapping[str, Any]], stamps: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Return the rows whose settings stamp is that of the work as it is now."""
    return [row for row in found if row.get("settings") == stamps.get(row["work"], "gone")]


def write(file: Path, text: str) -> None:
    """Write a file atomically, as blobs are written."""
    LocalBlobs(str(file.parent)).write(file.name, text.encode())


def commit_of(attempts: Sequence[Mapping[str, Any]]) -> str:
    """Return the commits of a run's attempts, with a plus for this commit with uncommitted
    changes.
    """
    own = dict.fromkeys(each["git_commit"][:7] for each in attempts)
    return " and ".join(now if (now := commit()).startswith(each) else each for each in own)


def rows() -> Sequence[Mapping[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def page(found: Sequence[Mapping[str, Any]]) -> str:
    parts = [HEAD]
    for name, work in WORKS.items():
        mine = sorted(
            (row for row in found if row["work"] == name), key=lambda row: int(row["seed"])
        )
        if not mine:
            continue
        names = dict.fromkeys(
            key for row in mine for key in row if key not in ("work", "seed", "settings", "commit")
        )
        goals = {**work.goals, "seconds": work.time}
        lines = [
            line(key, [row[key] for row in mine if key in row], goals.get(key), len(mine))
            for key in names
        ]
        commits = ", ".join(f"seed {row['seed']}: {row['commit']}" for row in mine)
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

    A p-value, seconds and interval ends have no mean: their goal is that of the largest.
    """
    if measure.startswith(("p of", "95 %")) or measure in ("seconds", "to"):
        found, mean = max(values), ""
    elif len(values) < 2:
        found, mean = values[0], number(values[0])
    else:
        of_seeds = mean_interval(values)
        found, mean = (
            of_seeds.estimate,
            " ".join(
                (number(of_seeds.estimate), f"[{number(of_seeds.low)}, {number(of_seeds.high)}]")
            ),
        )
    wanted = "" if goal is None else goal.describe(found)
    if wanted and len(values) < seeds:
        wanted += f" by the {len(values)} of {seeds} seeds that have it"
    return f"| {measure} | {mean} | {', '.join(map(number, values))} | {wanted} |"


def number(value: float) -> str:
    """Format a number with three decimals, or more where those would be zero."""
    return (
        f"{value:.0f}"
        if value >= 100
        else f"{value:.3f}"
        if not 0 < abs(value) < 5e-4
        else f"{value:.1g}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.results [EXPERIMENT...] [--seeds N]`: run experiments, write docs/results.md."""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from adapters.local.blobs import LocalBlobs
from kitchen.runs.store import read_run
from kitchen.statistics.intervals import mean_interval
from tests.results.works import FROM, WORKS, Cooking, Goal, Headline, Work, settings_of
from tests.support.commit import commit

ROOT = Path(__file__).parents[2]
PAGE, ROWS = ROOT / "docs/results.md", ROOT / "docs/results.jsonl"
HEAD = """# Results

This page shows what the recipes learn on SmolLM2-135M-Instruct. Most experiments were run with three
seeds on two CPU cores, and most runs take a few minutes. The tables have the mean over the seeds and, in
parentheses, the value of each seed. Everything is measured on held-out data, with greedy decoding.

[Details](#details) describes each experiment and lists every measure by seed, with commit and date.
For `sl_basic`, see
[`make run` in the benchmarks](benchmarks.md#training-and-evaluation-with-make-run). For the methods
behind the p-values, see [Statistics](explanation/statistics.md).
"""
DETAILS = """## Details

- The machine has 2 cores and no GPU. It is shared: for minutes at a time, other users take half of
  it. On an idle machine, runs take the same time or less.
- Means over three seeds have no interval here: it would be wider than the seeds suggest, and could end
  outside the range of a share. A result is a null result if Student's t interval over the seeds includes
  the value of no effect.
- All runs of an experiment start from the same weights. Only the seed of the run differs.
- Targets for p-values and seconds have to be reached by every seed, other targets by the mean.
- Seconds are the duration of a run, including its evaluations before and after training. They do not
  include the training of the weights that it starts from. Interrupted runs have no seconds.
- Dates are those of the commits.

`make results` runs experiments that are missing or whose settings have changed, resumes interrupted ones,
and writes this page. `results.jsonl`, next to it, has the measures of each seed. To repeat an experiment,
delete its rows there and its runs in `build/results`. The GSM8K experiment needs `PREFERENCES=FILE`: a file
of pairs, with one JSON object per line that has `prompt`, `chosen` and `rejected`.
"""
# labels on the page, by measure. The keys are those of published rows in results.jsonl, whose settings
# are stamped with the digest of works.py, so they cannot be renamed there.
LABELS = {
    "95 % of it, from": "95 % interval, lower end",
    "to": "95 % interval, upper end",
    "KL to the start, nats an answer": "KL to the initial weights, nats per answer",
    "KL to the start, nats a token": "KL to the initial weights, nats per token",
    "reverse KL before, nats a token": "reverse KL before, nats per token",
    "share that is gone": "share of the KL removed",
    "share of the teacher's": "exact match after, relative to the teacher",
    "shorter wins": "accuracy of the rule that the shorter answer wins",
    "valid JSON wins": "accuracy of the rule that valid JSON wins",
    "how far the judge prefers new answers": "judge's preference for new answers, 0 to 1",
    "p of that": "p-value of that preference",
    "answers cut before": "truncated answers before",
    "answers cut after": "truncated answers after",
    "p of the gain": "p-value of the gain",
}
METADATA = ("work", "seed", "settings", "commit", "date")
HEADER = ("task and measure", "before", "after", "gain", "p by seed", "outcome")
Row = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.results", description="Measure what each recipe learns."
    )
    parser.add_argument(
        "experiments",
        nargs="*",
        metavar="EXPERIMENT",
        help=f"default: all of {', '.join(WORKS)}",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=ROOT / "build/results")
    parser.add_argument(
        "--preferences",
        type=Path,
        help="a JSONL file with prompt, chosen and rejected, for dpo_gsm8k",
    )
    options = parser.parse_args()
    if unknown := [name for name in options.experiments if name not in WORKS]:
        parser.error(f"unknown experiment {unknown[0]!r}; choose from {', '.join(WORKS)}")
    console = Console(width=120)
    stamps = {
        name: settings_of(name) for name in WORKS
    }  # computed before the runs, during which the code may change
    for name in options.experiments or WORKS:
        for seed in range(options.seeds):
            if any((row["work"], row["seed"]) == (name, seed) for row in current(rows(), stamps)):
                continue
            cooking = Cooking(options.runs, seed, preferences=options.preferences)
            if WORKS[name].reads_preferences and not cooking.preferences:
                console.print(f"{name}, seed {seed}: skipped, because it needs --preferences FILE")
                continue
            row = measure(name, cooking, stamps[name])
            others = [other for other in rows() if (other["work"], other["seed"]) != (name, seed)]
            write(ROWS, "".join(json.dumps(entry) + "\n" for entry in (*others, row)))
            console.print(row)
            write(PAGE, page(current(rows(), stamps)))
    return 0


def measure(name: str, cooking: Cooking, stamp: str) -> Row:
    """Run an experiment with one seed; return its row."""
    run, measures = WORKS[name].measure(cooking)
    attempts = read_run(LocalBlobs(str(cooking.root)), run.id)["attempts"]
    commits = commit_of(attempts)
    return {
        "work": name,
        "seed": cooking.seed,
        "settings": stamp,
        "commit": commits,
        "date": date_of(commits),
        **({"seconds": round(run.seconds)} if len(attempts) == 1 else {}),
        **measures,
    }


def current(
    rows: Sequence[Mapping[str, Any]], stamps: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Return the rows that were measured with the current settings of their experiment."""
    return [row for row in rows if row.get("settings") == stamps.get(row["work"], "gone")]


def write(file: Path, text: str) -> None:
    """Write a file atomically."""
    LocalBlobs(str(file.parent)).write(file.name, text.encode())


def commit_of(attempts: Sequence[Mapping[str, Any]]) -> str:
    """Return the commits of a run's attempts; the current commit has a plus if files are changed."""
    commits = dict.fromkeys(attempt["git_commit"][:7] for attempt in attempts)
    current_commit = commit()
    return " and ".join(
        current_commit if current_commit.startswith(short) else short for short in commits
    )


def date_of(commits: str) -> str:
    """Return the date of the last commit as YYYY-MM-DD, or an empty string outside a repository."""
    command = ["git", "show", "-s", "--format=%cs", commits.split()[-1].rstrip("+")]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return shown.stdout.strip()


def rows() -> Sequence[Mapping[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def page(rows: Sequence[Row]) -> str:
    """Return the page in Markdown: a summary by recipe, then one table per experiment."""
    measured = {name: _by_seed(rows, name) for name in WORKS}
    measured = {name: by_seed for name, by_seed in measured.items() if by_seed}
    recipes = dict.fromkeys(WORKS[name].recipe for name in measured)
    summaries = [summary(recipe, measured) for recipe in recipes]
    details = [table(WORKS[name], by_seed) for name, by_seed in measured.items()]
    return "\n".join([HEAD, *summaries, DETAILS, *details])


def _by_seed(rows: Sequence[Row], name: str) -> list[Row]:
    return sorted((row for row in rows if row["work"] == name), key=lambda row: int(row["seed"]))


def summary(recipe: str, measured: Mapping[str, Sequence[Row]]) -> str:
    """Return the summary of a recipe, with a line for each headline of its experiments.

    Columns without a value are left out.
    """
    lines = list[tuple[str, ...]]()
    for name, by_seed in measured.items():
        work = WORKS[name]
        if work.recipe == recipe:
            link = f"[{work.task}](#{anchor(work)})"
            lines += [_headline(link, headline, work, by_seed) for headline in work.headlines]
    columns = [column for column in zip(HEADER, *lines, strict=True) if any(column[1:])]
    header, *rows = (f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
    rule = "| " + " | ".join("---" for _ in columns) + " |"
    return "\n".join([f"## `{recipe}`", "", header, rule, *rows, ""])


def label(measure: str) -> str:
    """Return the name of a measure on the page."""
    return LABELS.get(measure, measure.replace(FROM, " (lower end of its 95 % interval)"))


def anchor(work: Work) -> str:
    """Return the anchor of an experiment's table on the page."""
    return re.sub(r"\W+", "-", f"{work.recipe} {work.task}".lower()).strip("-")


def _headline(link: str, headline: Headline, work: Work, by_seed: Sequence[Row]) -> tuple[str, ...]:
    """Return the cells of one line, in the order of HEADER."""
    before, after, gain = (
        _seeds(values_of(key, by_seed)) for key in (headline.before, headline.after, headline.gain)
    )
    p_values = ", ".join(map(number, values_of(headline.p_value, by_seed)))
    return f"{link}: {headline.label}", before, after, gain, p_values, outcome(work, by_seed)


def outcome(work: Work, by_seed: Sequence[Row]) -> str:
    """Summarise an experiment: a null result, missed targets, or all targets reached."""
    for measure, value in work.no_effect.items():
        values = values_of(measure, by_seed)
        if len(values) > 1:
            interval = mean_interval(values)
            if interval.known and interval.low <= value <= interval.high:
                return f"null result: the interval includes {value:g}"
            if not interval.known and interval.estimate == value:
                return f"null result: every seed has {value:g}"
    missed = [
        label(measure)
        for measure, goal in goals_of(work).items()
        if (values := values_of(measure, by_seed))
        and goal.describe(value_for_goal(measure, values)).endswith("missed")
    ]
    if missed:
        return f"missed: {', '.join(missed)}"
    return "targets reached" if work.goals else "no target"


def goals_of(work: Work) -> Mapping[str, Goal]:
    """Return the targets of an experiment, including its time."""
    return {**work.goals, "seconds": work.time}


def values_of(measure: str, by_seed: Sequence[Row]) -> list[float]:
    """Return the values of a measure for the seeds that have it."""
    return [row[measure] for row in by_seed if measure in row]


def table(work: Work, by_seed: Sequence[Row]) -> str:
    """Return a table of all measures of an experiment."""
    measures = dict.fromkeys(key for row in by_seed for key in row if key not in METADATA)
    goals = goals_of(work)
    lines = [
        line(measure, values_of(measure, by_seed), goals.get(measure), len(by_seed))
        for measure in measures
    ]
    commits = ", ".join(f"seed {row['seed']}: {_dated_commit(row)}" for row in by_seed)
    return "\n".join(
        [
            f"### {work.recipe}: {work.task}",
            "",
            *textwrap.wrap(work.description, 100),
            "",
            "| measure | mean | by seed | target |",
            "| --- | --- | --- | --- |",
            *lines,
            "",
            f"Commits: {commits}.",
            "",
        ]
    )


def _dated_commit(row: Row) -> str:
    """Return a row's commit with its date, if that is recorded."""
    return f"{row['commit']} ({row['date']})" if row.get("date") else str(row["commit"])


def line(measure: str, values: Sequence[float], goal: Goal | None, seeds: int) -> str:
    """Format one line of the table.

    P-values, seconds and ends of intervals have no mean; their target is for the largest value.
    """
    mean = "" if has_no_mean(measure) or not values else number(_mean(values))
    verdict = "" if goal is None else goal.describe(value_for_goal(measure, values))
    if verdict and len(values) < seeds:
        verdict += f" by the {len(values)} of {seeds} seeds that have it"
    return f"| {label(measure)} | {mean} | {', '.join(map(number, values))} | {verdict} |"


def has_no_mean(measure: str) -> bool:
    """Return whether a measure is a p-value, a time or the end of an interval."""
    return measure.startswith(("p of", "95 %")) or measure in ("seconds", "to")


def value_for_goal(measure: str, values: Sequence[float]) -> float:
    """Return the value that a target is compared with: the largest, or the mean."""
    return max(values) if has_no_mean(measure) else _mean(values)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _seeds(values: Sequence[float]) -> str:
    """Format a mean and, if there are several seeds, the value of each; empty without values."""
    if len(values) < 2:
        return "".join(map(number, values))
    return f"{number(_mean(values))} ({', '.join(map(number, values))})"


def number(value: float) -> str:
    """Format a number with three decimals, or more where those would be zero."""
    if value >= 100:
        return f"{value:.0f}"
    if 0 < abs(value) < 5e-4:
        return f"{value:.1g}"
    return f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())

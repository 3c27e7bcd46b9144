"""A run that another process executes, read from its folder again and again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kitchen.ports.blobs import BlobStore
from kitchen.runs.history import Point, Rows, Series, Speed
from kitchen.runs.jsonl import read_content
from kitchen.runs.store import RunSummary, parse_journal, read_run, run_summary
from kitchen.runs.wording import activity

SPEED = "tokens/s"
# drawn if a run publishes them, before the metric that selects its best weights
_CURVES = ("loss", "held_out_loss", "reward", "held_out_reward", "learning_rate", "grad_norm")
_LOG_KEYS = ("event", "level", "timestamp", "exception", "run", "logger")  # not shown as values
_RECENT_STEPS = 50  # from which the time left is computed
_RECENT_ROWS = 1000  # that can tell which step the run is at
_KILLED = 1  # exit code of a run whose process ended without recording one
_INTERRUPTED = 130


@dataclass(frozen=True)
class RunView:
    """The state of a run at one moment, and what it has published so far."""

    summary: RunSummary
    record: Mapping[str, Any]  # run.json
    seconds: float  # over all attempts, up to now if the run is in progress
    step: int  # of the innermost loop, from 1; 0 before the first is complete
    steps: int | None  # of that loop; None if unknown
    left: float | None  # seconds until the loop is complete
    activity: str  # of a stage outside loops, such as "Evaluating the base model"; else ""
    series: Mapping[str, Sequence[Point]]  # the usual metrics that it has published, and its speed
    samples: Rows
    log: Rows

    @property
    def is_over(self) -> bool:
        return self.summary.status != "running"

    @property
    def exit_code(self) -> int:
        """The exit code of the run; 0 while it is in progress."""
        if self.summary.status in ("running", "completed"):
            return 0
        if self.summary.status == "killed":
            return _KILLED
        return int(self.record.get("exit_code", 1)) or _INTERRUPTED

    @property
    def place(self) -> str:
        """The position of the run, such as `step 5 of 20`."""
        if not self.step:
            return "before the first step"
        return f"step {self.step:,}" + (f" of {self.steps:,}" if self.steps else "")


class RunFollower:
    """Reads a run; of its journals only the lines that were added since are parsed."""

    def __init__(self, blobs: BlobStore, run: str) -> None:
        self._blobs = blobs
        self._run = run
        self._journals = {
            name: _JournalReader(blobs, run, name) for name in ("metrics", "samples", "log")
        }
        self._curves = _Curves()

    def read(self) -> RunView:
        """Return the run as it is now; raises ConfigError if it cannot be read."""
        summary = run_summary(self._blobs, self._run)  # before the journals, or it ends too early
        record = read_run(self._blobs, self._run)
        rows = {name: journal.rows() for name, journal in self._journals.items()}
        steps_done = _loop_rows(rows["metrics"])
        step = int(steps_done[-1]["step"]) + 1 if steps_done else 0
        steps = _loop_length(record)
        if steps is not None and steps < step:  # rows of an earlier loop
            steps = None
        is_running = summary.status == "running"
        return RunView(
            summary,
            record,
            _seconds(summary, record),
            step,
            steps,
            _time_left(steps_done, step, steps) if is_running else None,
            _activity(record) if is_running else "",
            self._curves.read(rows["metrics"], record.get("selects_by") or ""),
            rows["samples"],
            rows["log"],
        )


class _Curves:
    """The curves of a run's metrics; only rows that were added are looked at."""

    def __init__(self) -> None:
        self._rows: Rows = ()
        self._series: dict[str, Series | Speed] = {}
        self._selects_by = ""

    def read(self, metrics: Rows, selects_by: str) -> Mapping[str, Sequence[Point]]:
        count = len(self._rows)
        is_longer = not count or (len(metrics) >= count and metrics[count - 1] is self._rows[-1])
        if not is_longer or selects_by != self._selects_by or not self._series:
            count = 0
            self._selects_by = selects_by
            names = dict.fromkeys([*_CURVES, selects_by or _CURVES[0]])
            self._series = {**{name: Series(name) for name in names}, SPEED: Speed()}
        for row in metrics[count:]:
            for series in self._series.values():
                series.add(row)
        self._rows = metrics
        # copies, because the points are added to later
        return {name: tuple(of.points) for name, of in self._series.items() if of.points}


class _JournalReader:
    """Reads a growing journal; after a resumed run has cut it, from the start."""

    def __init__(self, blobs: BlobStore, run: str, name: str) -> None:
        self._blobs = blobs
        self._run = run
        self._name = name
        self._content = b""
        self._rows: list[dict[str, Any]] = []

    def rows(self) -> Rows:
        content = read_content(self._blobs, f"{self._run}/{self._name}.jsonl")
        if not content.startswith(self._content):
            self._rows = []
            self._content = b""
        added = content[len(self._content) :].splitlines()
        # a new list, because the one that was returned before belongs to the caller
        self._rows = [*self._rows, *parse_journal(self._blobs, self._run, self._name, added)]
        self._content = content
        return self._rows


def log_line(row: Mapping[str, Any]) -> str:
    """Return an entry of the log in one line: time, level, event and values."""
    at = str(row.get("timestamp", ""))[11:19]
    values = [f"{key}={value}" for key, value in row.items() if key not in _LOG_KEYS]
    return "  ".join([at, str(row.get("level", "")), str(row.get("event", "")), *values])


def sample_score(row: Mapping[str, Any]) -> str:
    """Return the reward or the first score of a sample, such as `reward 0.5`; "" without one."""
    scores = row.get("scores") or {}
    if isinstance(row.get("reward"), int | float):
        scores = {"reward": row["reward"]}
    name, value = next(iter(scores.items()), ("", None))
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return f"{name.replace('_', ' ')} {value:.3g}" if is_number else ""


def _loop_rows(metrics: Rows) -> Rows:
    """Return the last rows of the stage that publishes most often now, from its last loop on.

    Stages of outer loops publish less often, and stages outside of loops at step 0 only.
    """
    last = metrics[-_RECENT_ROWS:]
    in_loops = {row["stage"] for row in last if row["step"] > 0}
    recent = [row["stage"] for row in last if row["stage"] in in_loops][-_RECENT_STEPS:]
    if not recent:
        return [row for row in last if "loss" in row or "reward" in row][-1:]
    [(stage, _)] = Counter(recent).most_common(1)
    rows: list[Mapping[str, Any]] = []
    for row in last:
        if row["stage"] == stage:
            if rows and row["step"] <= rows[-1]["step"]:
                rows.clear()
            rows.append(row)
    return rows


def _loop_length(record: Mapping[str, Any]) -> int | None:
    """Return the iterations of the loop that started last; None if that is unknown."""
    lengths = list(record.get("loops", {}).values())
    length = lengths[-1] if lengths else None
    return length if isinstance(length, int) else None


def _seconds(summary: RunSummary, record: Mapping[str, Any]) -> float:
    """Return the seconds of all attempts; the last is in progress if the run is."""
    attempts: Sequence[Mapping[str, Any]] = record["attempts"]
    if summary.status != "running" or not attempts:
        return summary.seconds
    last = attempts[-1]
    started = datetime.fromisoformat(last["started"])
    # the clock of another machine may be behind
    now = max((datetime.now(UTC) - started).total_seconds(), last["seconds"])
    earlier = summary.seconds - float(last["seconds"])
    return earlier + float(now)


def _time_left(rows: Rows, step: int, steps: int | None) -> float | None:
    """Return the seconds that the rest of the loop takes at the speed of its recent steps."""
    recent: list[Mapping[str, Any]] = []
    for row in rows[-_RECENT_STEPS:]:
        if recent and row["seconds"] < recent[-1]["seconds"]:  # a new attempt starts at 0
            recent.clear()
        recent.append(row)
    if steps is None or not recent:
        return None
    done = recent[-1]["step"] - recent[0]["step"]
    if not done or step >= steps:
        return None
    seconds: float = recent[-1]["seconds"] - recent[0]["seconds"]
    return (steps - step) * seconds / float(done)


def _activity(record: Mapping[str, Any]) -> str:
    at = record.get("at", {})
    return activity(at["stage"]) if at.get("stage") and not at.get("loop") else ""

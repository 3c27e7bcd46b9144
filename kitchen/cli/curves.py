"""Curves of a run's metrics in one line of text, and where the selecting metric was best."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitchen.ports import BlobStore
from kitchen.runs.history import Point, series_of
from kitchen.runs.store import read_journal, read_run

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # characters of a curve


@dataclass(frozen=True)
class BestBy:
    """The metric that selects the best weights of a run, and whether higher values are better."""

    metric: str = "held_out_loss"
    greater_is_better: bool = False
    exports: bool = True  # whether the run exported its weights at evaluations

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> BestBy:
        """Return what the record of a run says; the default metric if it ranks no exports."""
        if not record.get("selects_by"):
            return cls(exports=False)
        return cls(record["selects_by"], record.get("greater_is_better", False))

    def best_point(self, points: Sequence[Point]) -> Point:
        """Return the step with the best value, the first of several."""
        sign = -1.0 if self.greater_is_better else 1.0
        return min(points, key=lambda point: sign * point[1])

    @property
    def superlative(self) -> str:
        """The word for the best value."""
        return "highest" if self.greater_is_better else "lowest"


def run_curves(blobs: BlobStore, run: str, headline: Sequence[str], encoding: str) -> Sequence[str]:
    """Return the curves of a run's headline metrics, and a sentence if its weights got worse."""
    rows = read_journal(blobs, run, "metrics")
    best_by = BestBy.of_record(read_run(blobs, run))
    names = list(dict.fromkeys((*headline, best_by.metric)))
    lines = list(curve_lines(rows, names, best_by, encoding=encoding))
    note = overfitting_note(rows, run, best_by)
    return [*lines, note] if lines and note else lines


def curve_lines(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    best_by: BestBy = BestBy(),
    *,
    encoding: str = "utf-8",
) -> Iterator[str]:
    """Yield a line for each of these metrics that changes during a run.

    It has the first value, the curve and the last value. `rows` are those of metrics.jsonl. Curves
    are left out if the encoding has no block characters.
    """
    series = {name: points for name in names if len(points := series_of(rows, name)) > 2}
    return series_lines(series, best_by, encoding=encoding)


def series_lines(
    series: Mapping[str, Sequence[Point]],
    best_by: BestBy = BestBy(),
    *,
    encoding: str = "utf-8",
    width: int = WIDTH,
) -> Iterator[str]:
    """Yield a line for each of these series, with a curve of up to `width` characters."""
    longest = max(map(len, series), default=0)
    for name, points in series.items():
        values = [value for _, value in points]
        drawn = sparkline(values, width)
        if not _can_encode(drawn, encoding):
            drawn = "to"
        label = f"{name.replace('_', ' '):{longest}}"
        line = f"{label}  {_number(values[0])} {drawn} {_number(values[-1])}"
        step, best = best_by.best_point(points)
        if name == best_by.metric and best != values[-1]:
            line += f", {best_by.superlative} {best:.4g} at step {step}"
        yield line


def _number(value: float) -> str:
    """Return four digits, and all of a number of tens of thousands."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Draw values as block characters, as means of equal parts if there are more than `width`."""
    count = min(width, len(values))
    means = []
    for at in range(count):
        part = values[at * len(values) // count : (at + 1) * len(values) // count]
        means.append(math.fsum(part) / len(part))
    low, high = min(means), max(means)
    if high <= low:
        return BLOCKS[0] * count
    scale = (len(BLOCKS) - 1) / (high - low)
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def overfitting_note(
    rows: Sequence[Mapping[str, Any]], run: str, best_by: BestBy = BestBy()
) -> str | None:
    """Return a sentence if the selecting metric got worse after its best value; else None."""
    points = series_of(rows, best_by.metric)
    if len(points) < 2:
        return None
    step, best = best_by.best_point(points)
    last = points[-1][1]
    if step == points[-1][0] or last == best:
        return None
    moved = "fell" if best_by.greater_is_better else "rose"
    name = re.sub("^held out", "held-out", best_by.metric.replace("_", " "))
    sentence = f"The {name} was {best_by.superlative} at step {step} ({best:.4g}) and {moved} to "
    if not best_by.exports:
        return (
            f"{sentence}{last:.4g}. The run exported no weights at that step: train for fewer "
            "steps, or with a recipe that exports weights at evaluations, such as recipes.sl_basic."
        )
    return f"{sentence}{last:.4g}: run:{run}@best names the weights of that step."


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True

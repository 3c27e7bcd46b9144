"""Curves of a run's metrics in one line of text, and where the held-out loss was lowest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kitchen.runs.history import Point, series_of

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # characters of a curve
HELD_OUT_LOSS = "held_out_loss"


def curve_lines(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, encoding: str = "utf-8"
) -> Iterator[str]:
    """Yield a line for each of these metrics that changes during a run.

    It has the first value, the curve and the last value. `rows` are those of metrics.jsonl. Curves
    are left out if the encoding has no block characters.
    """
    series = {name: points for name in names if len(points := series_of(rows, name)) > 2}
    width = max(map(len, series), default=0)
    for name, points in series.items():
        values = [value for _, value in points]
        drawn = sparkline(values)
        if not _can_encode(drawn, encoding):
            drawn = "to"
        label = f"{name.replace('_', ' '):{width}}"
        line = f"{label}  {values[0]:.4g} {drawn} {values[-1]:.4g}"
        step, lowest = lowest_point(points)
        if name == HELD_OUT_LOSS and step < points[-1][0]:
            line += f", lowest {lowest:.4g} at step {step}"
        yield line


def lowest_point(points: Sequence[Point]) -> Point:
    """Return the step with the lowest value, the first of several."""
    return min(points, key=lambda point: point[1])


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


def overfitting_note(rows: Sequence[Mapping[str, Any]], run: str) -> str | None:
    """Return a sentence if the held-out loss rose after its lowest value; None otherwise."""
    points = series_of(rows, HELD_OUT_LOSS)
    if len(points) < 2:
        return None
    step, lowest = lowest_point(points)
    last = points[-1][1]
    if step == points[-1][0] or last <= lowest:
        return None
    return (
        f"The held-out loss was lowest at step {step} ({lowest:.4g}) and rose to {last:.4g}: "
        f"run:{run}@best names the weights of that step."
    )


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True

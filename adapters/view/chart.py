"""Curves as SVG elements of a page, thinned to the points that can be seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

from adapters.view.markup import Html, join, tag
from kitchen.experiments.reports.figures import thinned
from kitchen.runs.history import Point

MAX_POINTS = 240  # of a curve
_MARKED = 30  # points; a curve with fewer has a dot at each
_WIDTH, _HEIGHT = 360, 182  # of the view box
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 344, 10, 162  # of the area of the curves
_LARGEST = 1e100  # value that is drawn: the span of larger ones is infinite


def chart(title: str, series: Mapping[str, Sequence[Point]]) -> Html:
    """Return a figure with a panel of curves, their names and their last values."""
    drawn = {name: thinned(list(map(_clip, points)), MAX_POINTS) for name, points in series.items()}
    points = list(chain.from_iterable(drawn.values()))
    steps = _span([step for step, _ in points])
    values = _span([value for _, value in points])
    x_axis = _Axis(*steps, _LEFT, _RIGHT)
    y_axis = _Axis(*values, _BOTTOM, _TOP)
    curves = [_curve(points, x_axis, y_axis, at) for at, points in enumerate(drawn.values())]
    svg = tag(
        "svg",
        *_grid(x_axis, y_axis),
        *curves,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=_description(title, series),
    )
    names = [words(name) for name in series] if len(series) > 1 else [""]
    last = [points[-1][1] for points in series.values()]
    legend = [_entry(name, last[at], at) for at, name in enumerate(names)]
    return tag("figure", tag("figcaption", tag("b", title), *legend), svg)


class _Axis:
    """Places values between two positions, with round numbers as ticks."""

    def __init__(self, low: float, high: float, start: int, end: int) -> None:
        self._low, self._high = low, high
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> Sequence[float]:
        """Return three to six round values: multiples of 1, 2 or 5 times a power of ten."""
        rough = (self._high - self._low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next((k * power for k in (1, 2, 5) if k * power >= rough), 10 * power)
        first = math.ceil(self._low / step)
        count = math.floor(self._high / step) - first + 1
        return [(first + at) * step for at in range(count)]


def number(value: float) -> str:
    """Return a number as short as it can be read: 12,300 or 0.0012."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def _clip(point: Point) -> Point:
    step, value = point
    return step, max(-_LARGEST, min(value, _LARGEST))


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def _curve(points: Sequence[Point], x_axis: _Axis, y_axis: _Axis, at: int) -> Html:
    places = [(x_axis.at(step), y_axis.at(value)) for step, value in points]
    kind = f"curve curve-{at % 4}"
    line = tag("polyline", points=" ".join(f"{x},{y}" for x, y in places), class_=kind)
    if len(places) > _MARKED:
        return line
    dots = [tag("circle", cx=str(x), cy=str(y), r="2.5", class_=kind) for x, y in places]
    return join(line, *dots)


def _grid(x_axis: _Axis, y_axis: _Axis) -> Sequence[Html]:
    parts = []
    for value in y_axis.ticks():
        y = y_axis.at(value)
        parts.append(tag("path", d=f"M{_LEFT} {y}H{_RIGHT}", class_="grid"))
        place = {"x": str(_LEFT - 5), "y": str(y + 3.5)}
        parts.append(tag("text", _tick(value), class_="y", **place))
    whole = [value for value in x_axis.ticks() if value == int(value)]
    for value in whole[:6]:
        place = {"x": str(x_axis.at(value)), "y": str(_BOTTOM + 15)}
        parts.append(tag("text", _tick(value), class_="x", **place))
    return parts


def _tick(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= abs(value) < 1e12:
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.4g}"


def _entry(name: str, last: float, at: int) -> Html:
    return tag("span", f"{name} {number(last)}".strip(), class_=f"key key-{at % 4}")


def _description(title: str, series: Mapping[str, Sequence[Point]]) -> str:
    parts = [
        f"{words(name)} from {number(points[0][1])} at step {points[0][0]} "
        f"to {number(points[-1][1])} at step {points[-1][0]}"
        for name, points in series.items()
    ]
    return f"{title}: {'; '.join(parts)}"


def words(metric: str) -> str:
    """Return the name of a metric as words: `held-out loss` for `held_out_loss`."""
    return metric.replace("held_out", "held-out").replace("_", " ")

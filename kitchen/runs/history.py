"""Metrics of a run over its steps: as series, a pandas DataFrame, or a matplotlib figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from kitchen.errors import BackendError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

Rows = Sequence[Mapping[str, Any]]  # those of metrics.jsonl
Point = tuple[int, float]  # number of the step, from 1, and the value
_NOT_METRICS = {"n", "stage", "step", "seconds"}  # further keys of the rows
_PANEL_SIZE = (6.4, 3.2)  # inches


class Series:
    """The finite values of a metric by step, row by row; those of its last loop, if several."""

    def __init__(self, name: str) -> None:
        self.points: list[Point] = []
        self._name = name

    def add(self, row: Mapping[str, Any]) -> None:
        value = row.get(self._name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return
        step = int(row["step"]) + 1
        if self.points and step <= self.points[-1][0]:
            self.points.clear()
        self.points.append((step, float(value)))


class Speed:
    """Tokens per second by step, where a step follows another one of its attempt and loop."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._before = math.inf  # seconds of the last row

    def add(self, row: Mapping[str, Any]) -> None:
        tokens = row.get("tokens")
        if not isinstance(tokens, int | float) or not math.isfinite(tokens):
            return
        step, seconds = int(row["step"]) + 1, float(row["seconds"])
        if self.points and step <= self.points[-1][0]:  # of another loop
            self.points.clear()
        elif seconds > self._before:
            self.points.append((step, tokens / (seconds - self._before)))
        self._before = seconds


def series_of(rows: Rows, name: str) -> list[Point]:
    """Return the finite values of a metric by step; those of its last loop, if it has several."""
    series = Series(name)
    for row in rows:
        series.add(row)
    return series.points


def speed_of(rows: Rows) -> list[Point]:
    """Return tokens per second by step."""
    speed = Speed()
    for row in rows:
        speed.add(row)
    return speed.points


def data_frame(rows: Rows) -> DataFrame:
    """Return one row per published set of metrics; raises BackendError without pandas.

    The number by which a resumed run finds its place in the file is left out.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise BackendError(
            "the history of a run is a DataFrame of pandas, which cannot be imported "
            f"({error}): pip install pandas"
        ) from error
    return DataFrame(list(rows)).drop(columns="n", errors="ignore")


def plot(rows: Rows, names: Sequence[str], headline: Sequence[str], title: str) -> Figure:
    """Draw metrics by step, those of `headline` that vary if there are no names.

    Losses share a panel, and every other metric has its own. Raises ConfigError for a metric that
    the run has not published, and BackendError without matplotlib.
    """
    series = {name: series_of(rows, name) for name in _chosen(rows, names, headline)}
    panels: dict[str, list[str]] = {}
    for name in series:
        panels.setdefault("loss" if name.endswith("loss") else name, []).append(name)
    plt = _pyplot()
    size = (_PANEL_SIZE[0], _PANEL_SIZE[1] * len(panels))
    figure: Figure
    figure, axes = plt.subplots(
        len(panels), sharex=True, squeeze=False, figsize=size, layout="constrained"
    )
    for panel, drawn in zip(axes[:, 0], panels.values(), strict=True):
        _draw(panel, {name: series[name] for name in drawn})
    axes[-1, 0].set_xlabel("step")
    figure.suptitle(title, parse_math=False)
    plt.close(figure)  # a notebook would otherwise show it twice
    return figure


def _chosen(rows: Rows, names: Sequence[str], headline: Sequence[str]) -> Sequence[str]:
    known = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name not in _NOT_METRICS]
    for name in names:
        if name not in known:
            raise ConfigError(f"the run has no metric {name!r}; {did_you_mean(name, known)}")
        if not series_of(rows, name):
            raise ConfigError(f"metric {name!r} has no finite value, so it cannot be drawn")
    chosen = names or [name for name in headline if len(series_of(rows, name)) > 1]
    if not chosen:
        raise ConfigError(
            f"none of {', '.join(headline)} was published at two or more steps; name the metrics "
            f"to draw, such as {', '.join(map(repr, known[:3])) or 'those of another run'}"
        )
    return list(dict.fromkeys(chosen))


def _draw(panel: Axes, series: Mapping[str, Sequence[Point]]) -> None:
    for name, points in series.items():
        steps, values = zip(*points, strict=True)
        # a few points, such as evaluations, are marked
        panel.plot(steps, values, label=_words(name), marker="o" if len(points) <= 20 else "")
    if len(series) == 1:
        panel.set_ylabel(_words(next(iter(series))), parse_math=False)
    else:
        panel.legend()
    panel.grid(alpha=0.3)


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise BackendError(
            f"a plot needs matplotlib, which cannot be imported ({error}): pip install matplotlib"
        ) from error
    return matplotlib.pyplot

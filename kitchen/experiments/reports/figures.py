"""Curves of a report as pictures, drawn by matplotlib."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from kitchen.errors import BackendError
from kitchen.runs.history import Point
from kitchen.runs.reports.content import Curves
from kitchen.safe_text import escape_controls

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 200  # of a curve that is drawn
_SIZE = (9.0, 3.2)  # inches
_MAX_LEGEND = 12  # names
_LARGEST = 1e100  # value that is drawn: matplotlib fails near the largest float
_INK = "#010203"  # colour of text and axes, which HTML replaces by that of the page
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "font.size": 9,
    "text.parse_math": False,
}


def draw(curves: Curves, form: Literal["svg", "pdf"]) -> bytes:
    """Return a panel of curves as a picture; raises BackendError without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendError(
            f"the curves of a report need matplotlib, which cannot be imported ({error}): "
            "pip install matplotlib"
        ) from error
    with mpl.rc_context({**_STYLE, "svg.hashsalt": curves.caption}):
        figure = Figure(figsize=_SIZE, layout="constrained")
        _draw_axes(figure.subplots(), curves)
        picture = io.BytesIO()
        # no date, so that the same runs give the same bytes
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
        with warnings.catch_warnings():
            if form == "svg":  # its text is text: the font of the page has the characters
                warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure.savefig(picture, format=form, transparent=form == "svg", metadata=metadata)
    return picture.getvalue()


def inline_svg(curves: Curves) -> str:
    """Return a panel as an `<svg>` element whose text has the colour of the page around it."""
    text = draw(curves, "svg").decode()
    element = text[text.index("<svg") :]
    return element.replace(_INK, "currentColor")


def thinned(points: Sequence[Point], most: int = MAX_POINTS) -> Sequence[Point]:
    """Return at most this many points: means over equal parts, each at its last step."""
    if len(points) <= most:
        return points
    parts = []
    for at in range(most):
        part = points[at * len(points) // most : (at + 1) * len(points) // most]
        mean = math.fsum(value / len(part) for _, value in part)
        parts.append((part[-1][0], mean))
    return parts


def _draw_axes(axes: Axes, curves: Curves) -> None:
    labels = {name: curves.groups.get(name, name) for name in curves.series}
    groups = list(dict.fromkeys(labels.values()))
    colours = dict(zip(groups, _colours(len(groups)), strict=True))
    for name, points in curves.series.items():
        label = labels[name]
        steps, values = zip(*thinned(points), strict=True)
        values = tuple(max(-_LARGEST, min(value, _LARGEST)) for value in values)
        marker = "o" if len(points) <= 20 else ""
        shown = escape_controls(label) if label in groups else None  # once in the legend
        axes.plot(steps, values, label=shown, marker=marker, ms=3, color=colours[label], lw=1.2)
        groups = [group for group in groups if group != label]
    axes.set_xlabel("step")
    axes.set_ylabel(escape_controls(curves.unit))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if 1 < len(colours) <= _MAX_LEGEND:
        axes.legend(frameon=False, fontsize=8)


def _colours(count: int) -> Sequence[Any]:
    """Return distinct colours that can be read on light and dark pages."""
    import matplotlib as mpl

    if count <= 10:
        return list(mpl.colormaps["tab10"].colors[:count])  # type: ignore[attr-defined]
    return list(mpl.colormaps["turbo"]([0.1 + 0.8 * at / (count - 1) for at in range(count)]))

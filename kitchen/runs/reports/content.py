"""The content of a report, independent of its format: sections of text, tables and curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from kitchen.runs.history import Point


@dataclass(frozen=True)
class Paragraph:
    """Plain text; `strong` text is the answer that a reader looks for first."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class DataTable:
    """A table; one that is `folded` is closed at first, in formats that can do this."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: bool = False


@dataclass(frozen=True)
class Curves:
    """One panel of curves by step; those of a group have one colour and one entry in the legend."""

    caption: str
    unit: str  # of the vertical axis
    series: Mapping[str, Sequence[Point]]
    groups: Mapping[str, str] = field(default_factory=dict)  # name of a series to its group


@dataclass(frozen=True)
class Answer:
    """The answers of several runs to one prompt."""

    prompt: str
    expected: str
    texts: Mapping[str, str]  # by run


@dataclass(frozen=True)
class Answers:
    """Answers of the runs, side by side."""

    caption: str
    answers: Sequence[Answer]


Block = Paragraph | DataTable | Curves | Answers


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """A report: what it is about, and its sections, the verdict first."""

    title: str
    subtitle: str
    sections: Sequence[Section]


def with_texts(part: Any, change: Callable[[str], str]) -> Any:
    """Return a part of a report with each of its texts changed."""
    if isinstance(part, str):
        return change(part)
    if isinstance(part, Mapping):
        return {with_texts(key, change): with_texts(item, change) for key, item in part.items()}
    if isinstance(part, list | tuple):
        return type(part)(with_texts(item, change) for item in part)
    if is_dataclass(part) and not isinstance(part, type):
        changed = {key: with_texts(item, change) for key, item in vars(part).items()}
        return replace(part, **changed)
    return part

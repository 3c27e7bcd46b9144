"""Durations and names of stages as people read them."""

from __future__ import annotations

import re

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def clock(seconds: float) -> str:
    """Return a duration such as 3.2 s, 4:05 or 1:04:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def words(title: str) -> str:
    """Return the name of a stage as words: `Evaluate base` for `EvaluateBase`."""
    parts = _WORD_START.sub(" ", title).split()
    others = [part if part.isupper() else part.lower() for part in parts[1:]]
    return " ".join([*parts[:1], *others])

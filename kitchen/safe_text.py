"""Text from anywhere made safe to show, and JSON from anywhere made safe to read."""

from __future__ import annotations

import json
import re
from typing import Any

# C0 without tab and line feed, DEL, C1, line separators, marks and overrides of direction, and
# halves of surrogate pairs: they steer a terminal, hide text or show it in another order
_UNSAFE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    r"\ud800-\udfff"
)
_CONTROL = re.compile(f"[{_UNSAFE}]")
_MAX_DEPTH = 200  # levels of JSON; Python's own recursion ends at about 1,000


def escape_controls(text: str) -> str:
    r"""Return a text with control characters, except tabs and line feeds, as `\x1b` or `\u202e`."""
    return _CONTROL.sub(_python_escape, text)


def escape_json_controls(json_text: str) -> str:
    r"""Return JSON with every control character in its texts as `\u202e`; it reads as before."""
    return _CONTROL.sub(_json_escape, json_text)


def read_json(text: str | bytes) -> Any:
    """Parse JSON; raises ValueError, also for values nested so deeply that they cannot be used."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"nested more than {_MAX_DEPTH} levels deep") from error
    openings = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, openings)) > _MAX_DEPTH:  # type: ignore[arg-type]
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Raise ValueError for a value that is nested too deeply, without recursion."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
        if not deeper:
            return
        level = deeper
    raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")


def _python_escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"

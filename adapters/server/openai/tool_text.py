"""Answers that may call tools: text for the reader, and calls for the program."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.server.openai.text import overlap
from kitchen.backend.tool_calls import parse_tool_calls

MARKER = "<tool_call>"


class ToolText:
    """Text that is released until a tool call may begin, and the calls at the end.

    Calls that cannot be parsed remain text.
    """

    def __init__(self) -> None:
        self._text = ""
        self._released = 0  # characters

    def add(self, piece: str) -> str:
        """Return the text that is certainly not part of a call."""
        self._text += piece
        return self._release(self._limit())

    def finish(self) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """Return the remaining text, and the calls; the text before calls has no space behind."""
        calls = _calls(self._text)
        if not calls:
            return self._release(len(self._text)), []
        before = self._text.partition(MARKER)[0] if MARKER in self._text else ""
        return self._release(len(before.rstrip())), calls

    def _limit(self) -> int:
        if self._text.lstrip().startswith(("{", "[")) or not self._text.strip():
            return 0
        before, marker, _ = self._text.partition(MARKER)
        end = len(before) - (0 if marker else overlap(before, MARKER))
        return len(before[:end].rstrip())

    def _release(self, end: int) -> str:
        released, self._released = self._text[self._released : end], max(end, self._released)
        return released


def _calls(text: str) -> Sequence[Mapping[str, Any]]:
    try:
        calls = parse_tool_calls(text)
    except (ValueError, RecursionError):
        return []
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in calls
    ]

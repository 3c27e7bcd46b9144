"""Conversations in text columns: lists of messages as JSON, and dialogues as one text."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kitchen.safe_text import read_json

# Anthropic's hh-rlhf: "\n\nHuman: ...\n\nAssistant: ..."
_TURN = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
_TURN_ROLES: Mapping[str, str] = {"Human": "user", "Assistant": "assistant"}
_ROLE_FIELDS = ("role", "from")


def list_from_text(text: str) -> Sequence[Any] | None:
    """Return the list that a text holds, as JSON or as Python writes it; None if it holds none.

    CSV has no lists: some tools write JSON in a cell, and pandas writes [{'role': 'user', ...}].
    """
    if not text.lstrip().startswith("["):
        return None
    for parse in (read_json, ast.literal_eval):
        try:
            value = parse(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, list) else None
    return None


def messages_from_text(text: str) -> Sequence[Any] | None:
    """Return the messages that a text holds as a list; None for any other text."""
    items = list_from_text(text)
    if items and all(isinstance(item, Mapping) and _has_role(item) for item in items):
        return items
    return None


def _has_role(item: Mapping[str, Any]) -> bool:
    return any(isinstance(item.get(field), str) for field in _ROLE_FIELDS)


def messages_from_dialogue(text: str) -> Sequence[Mapping[str, str]] | None:
    """Return the messages of a dialogue such as "\\n\\nHuman: Hi!\\n\\nAssistant: Hello."

    None for a text that is not one from its first character on.
    """
    turns = list(_TURN.finditer(text))
    if not turns or turns[0].start() != 0:
        return None
    ends = [turn.start() for turn in turns[1:]] + [len(text)]
    return [
        {"role": _TURN_ROLES[turn[1]], "content": text[turn.end() : end].strip()}
        for turn, end in zip(turns, ends, strict=True)
    ]

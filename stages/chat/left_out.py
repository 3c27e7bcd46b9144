"""Parts of messages that a chat template leaves out."""

from __future__ import annotations

import html
import json
import re

_THOUGHT_TAGS = re.compile(r"</?think(?:ing)?>")


def missing_text(content: str, rendered: str) -> str:
    """Return what a rendered text lacks of the content of a message; empty if it has all of it.

    White space does not count, nor the tags around a thought, which templates may write anew.
    """
    target = _squeeze(rendered)
    if _squeeze(content) in target:
        return ""
    for part in _THOUGHT_TAGS.split(content):
        if not _is_in(part, target):
            lines = [line for line in part.splitlines() if not _is_in(line, target)]
            return "\n".join(lines).strip() or part.strip()
    return ""


def _is_in(text: str, target: str) -> bool:
    """Return whether a text is in another one: as it is, or escaped for JSON or HTML."""
    forms = (text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1])
    return any(_squeeze(form) in target for form in (*forms, html.escape(text)))


def _squeeze(text: str) -> str:
    return "".join(text.split()).casefold()

"""The JSON that commands print with --json."""

from __future__ import annotations

import json
from typing import Any

from kitchen.runs.jsonl import without_nan
from kitchen.safe_text import escape_json_controls
from kitchen.secrets import mask, masked


def as_json(value: Any) -> str:
    """Return a value as JSON text without secrets, and with control characters as escapes.

    Numbers that are not finite, which JSON lacks, become null.
    """
    shown = masked(without_nan(value))
    text = json.dumps(shown, indent=2, default=_masked_text, ensure_ascii=False)
    return escape_json_controls(text)


def _masked_text(value: Any) -> str:
    return mask(str(value))

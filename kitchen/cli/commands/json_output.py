"""The JSON that commands print with --json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from kitchen.safe_text import escape_json_controls
from kitchen.secrets import mask, masked


def as_json(value: Any) -> str:
    """Return a value as JSON text without secrets, and with control characters as escapes.

    Numbers that are not finite, which JSON lacks, become null.
    """
    shown = masked(_without_nan(value))
    text = json.dumps(shown, indent=2, default=_masked_text, ensure_ascii=False)
    return escape_json_controls(text)


def _masked_text(value: Any) -> str:
    return mask(str(value))


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

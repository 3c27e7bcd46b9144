"""The JSON that commands print with --json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def as_json(value: Any) -> str:
    """Return a value as JSON text; numbers that are not finite, which JSON lacks, become null."""
    return json.dumps(_without_nan(value), indent=2, default=str, ensure_ascii=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

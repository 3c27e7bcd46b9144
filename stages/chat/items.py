"""Items: digests by which evaluations of different runs recognise the same question."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np

from kitchen.ports.datasets import Row
from stages.chat.row_fields import FIELDS

DIGITS = 16  # hex digits of a digest
# columns of questions and answers, in all formats
CONTENT_COLUMNS = frozenset(
    {"question"}
    | {
        field.name
        for field in FIELDS
        if field.level != "message" and field.treatment == "supported"
    }
)
LONGEST_TEXT = 64  # characters of a column that are recorded as they are


def digest(value: Any) -> str:
    """Return 16 hex digits of the SHA-256 of a value made of texts, numbers and containers."""
    text = json.dumps(_plain(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def item_digest(asked: Any, wanted: Any) -> str:
    """Return the item of a question: the digest of what was asked and what was wanted."""
    return digest([asked, wanted])


def recorded_columns(row: Row) -> Mapping[str, Any]:
    """Return the columns of a row by which items may be grouped: texts, numbers, booleans, dates.

    A long text is replaced by its digest.
    """
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, date | Decimal):
            columns[name] = str(value)
        elif isinstance(value, str) and len(value) > LONGEST_TEXT:
            columns[name] = f"sha256:{digest(value)}"
        elif _is_recorded(value):
            columns[name] = value
    return columns


def content_digest(row: Row) -> str:
    """Return the digest of the columns that hold the conversation; others, such as ids, may differ.

    A row without any of them is taken whole.
    """
    content = {name: value for name, value in row.items() if name in CONTENT_COLUMNS}
    return digest(content or row)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; functions and unknown objects are represented by name."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_plain(each), sort_keys=True) for each in value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [each.name for each in dataclasses.fields(value) if each.compare]
        return {name: _plain(getattr(value, name)) for name in fields}
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _is_recorded(value: Any) -> bool:
    """Return whether a column's value can stand in JSON and name a group."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)

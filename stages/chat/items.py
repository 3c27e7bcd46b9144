"""Items: digests by which evaluations of different runs recognise the same question."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import types
from collections import deque
from collections.abc import Mapping
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

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
# types whose values are identified by their text
_TEXT_TYPES = (
    *(date, time, timedelta, tzinfo, Decimal, Fraction, complex, PurePath, UUID, range, slice),
)


def digest(value: Any) -> str:
    """Return 16 hex digits of the SHA-256 of a value made of texts, numbers and containers."""
    return _sha256(_JsonForm().of(value))


def item_digest(asked: Any, wanted: Any) -> str:
    """Return the item of a question: the digest of what was asked and what was wanted."""
    return digest([asked, wanted])


def object_digest(value: Any, index: int) -> str:
    """Return the digest of the type and the attributes of an object.

    If they do not tell it apart, as with a lock or a lambda expression, its index is added.
    """
    form = _JsonForm(with_types=True)
    content = form.of(value)
    return _sha256(content if form.complete else [content, index])


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


def _sha256(content: Any) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


class _JsonForm:
    """Converts values to JSON, so that different values have different texts."""

    def __init__(self, with_types: bool = False) -> None:
        self._with_types = with_types  # of dataclasses
        self._path: list[int] = []  # identities of the containers around the current value
        self.complete = True  # False if a value was represented only by the name of its type

    def of(self, value: Any) -> Any:
        """Return a value as JSON has it."""
        if value is None or isinstance(value, str | int | float):
            return value
        if id(value) in self._path:
            return ["cycle", len(self._path) - self._path.index(id(value))]
        self._path.append(id(value))
        try:
            return self._of_container(value)
        finally:
            self._path.pop()

    def _of_container(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {self._key(name): self.of(each) for name, each in value.items()}
        if isinstance(value, list | tuple | deque):
            return [self.of(each) for each in value]
        if isinstance(value, set | frozenset):
            return sorted(json.dumps(self.of(each), sort_keys=True) for each in value)
        if isinstance(value, np.ndarray | np.generic):
            plain = value.tolist()
            return str(plain) if isinstance(plain, np.generic) else self.of(plain)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [each.name for each in dataclasses.fields(value) if each.compare]
            content = {name: self.of(getattr(value, name)) for name in fields}
            return [_name(type(value)), content] if self._with_types else content
        return self._of_object(value)

    def _of_object(self, value: Any) -> Any:
        kind = type(value).__qualname__
        if isinstance(value, Enum):
            return [_name(type(value)), value.name]
        if isinstance(value, bytes | bytearray | memoryview):
            return [kind, bytes(value).hex()]
        for text_type in _TEXT_TYPES:
            if isinstance(value, text_type):
                return [text_type.__qualname__, str(value)]
        if isinstance(value, re.Pattern):
            return [kind, self.of(value.pattern), value.flags]
        if isinstance(value, functools.partial):
            return [kind, self.of(value.func), self.of(value.args), self.of(value.keywords)]
        if isinstance(value, types.MethodType):
            return [kind, self.of(value.__func__), self.of(value.__self__)]
        if hasattr(value, "__qualname__"):
            self.complete &= "<" not in value.__qualname__  # <lambda>, <locals>
            return _name(value)
        return [_name(type(value)), self.of(self._attributes(value))]

    def _attributes(self, value: Any) -> Any:
        """Return the attributes of an object; there may be more to it if it is not of Python."""
        reduce: Any = type(value).__reduce__
        if reduce is not object.__reduce__:
            self.complete = False
        try:
            object.__reduce_ex__(value, 2)
        except TypeError:
            self.complete = False
        return object.__getstate__(value)

    def _key(self, name: Any) -> str:
        """Return the name of a key in JSON."""
        if name is None or isinstance(name, str | int | float):
            return str(name)
        return json.dumps(self.of(name), sort_keys=True)


def _name(named: Any) -> str:
    """Return the name of a type or function, without that of its module, which may be a script."""
    return str(named.__qualname__)


def _is_recorded(value: Any) -> bool:
    """Return whether a column's value can stand in JSON and name a group."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)

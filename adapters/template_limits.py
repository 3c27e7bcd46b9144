"""Limits on the work of a chat template, which comes with a model and may loop without end.

`adapters.chat_template` adds these functions to the syntax tree of a template.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any

MAX_STEPS = 1_000_000  # iterations of loops in one rendering
MAX_TEXT = 100_000_000  # characters of one text
_MAX_WORK = 1_000_000_000  # in characters of all texts together
STEP = _MAX_WORK // MAX_STEPS  # the work of one iteration
_ITEM = 10  # the work of an item of a list
CALL = 10 * STEP  # the work of a call of a macro
_MAX_ITEMS = 1_000_000  # of one list, and the width of a field
_MAX_BITS = 10_000  # of a product or power of integers
_MAX_SEPARATOR = 1_000  # characters between items that are joined, or before each line
# for templates that write the date; the template of Llama 3 falls back to this day
_TODAY = datetime(2024, 7, 26)


class TemplateLimitError(Exception):
    """A chat template did too much work."""


class _Remaining(threading.local):
    """The work that the current rendering of a thread may still do."""

    work = _MAX_WORK


_remaining = _Remaining()


def start_rendering() -> None:
    """Allow the current thread the work of one rendering."""
    _remaining.work = _MAX_WORK


def _spend(work: int) -> None:
    _remaining.work = work = _remaining.work - work
    if work < 0:
        raise TemplateLimitError(
            f"takes more than {MAX_STEPS:,} iterations of loops, {_MAX_WORK // CALL:,} calls of "
            f"macros or {_MAX_WORK:,} characters of text"
        )


def _spend_text(length: int) -> None:
    if length > MAX_TEXT:
        raise TemplateLimitError(f"makes more than {MAX_TEXT:,} characters of text")
    _spend(length)


def _spend_items(length: int) -> None:
    if length > _MAX_ITEMS:
        raise TemplateLimitError(f"makes a list of more than {_MAX_ITEMS:,} items")
    _spend(_ITEM * length)


# Compiled templates call these counters by operators: `STEPS - work`. The sandbox that templates
# run in makes calls of functions several times slower.


class _Steps:
    """Counter of steps: `STEPS - work` is True."""

    def __sub__(self, work: int) -> bool:
        _spend(work)
        return True


class _Lengths:
    """Counter of characters and items: `LENGTHS - value` is the value."""

    def __sub__(self, value: Any) -> Any:
        if type(value) is str:
            _spend_text(len(value))
        elif isinstance(value, list | tuple | range | Mapping):
            _spend_items(len(value))
        return value


class _Sizes:
    """Counter of characters and items, nested ones included: `SIZES - value` is the value."""

    def __sub__(self, value: Any) -> Any:
        if type(value) is str:
            _spend_text(len(value))
        elif isinstance(value, list | tuple | Mapping):
            _spend_nested(value)
        return LENGTHS - value if isinstance(value, range) else value


class _Widths:
    """Check of the numbers that functions take: `WIDTHS - value` is the value."""

    def __sub__(self, value: Any) -> Any:
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, int) and abs(number) > _MAX_ITEMS:
                raise TemplateLimitError(f"calls a function with a number above {_MAX_ITEMS:,}")
        return value


class _Separators:
    """Check of separators and indents, which repeat: `SEPARATORS - value` is the value."""

    def __sub__(self, value: Any) -> Any:
        width = len(value) if isinstance(value, str) else value
        if isinstance(width, int) and width > _MAX_SEPARATOR:
            raise TemplateLimitError(
                f"joins or indents lines by more than {_MAX_SEPARATOR:,} characters"
            )
        return value


STEPS, LENGTHS, SIZES, WIDTHS, SEPARATORS = (
    _Steps(),
    _Lengths(),
    _Sizes(),
    _Widths(),
    _Separators(),
)


def _spend_nested(value: Any) -> None:
    """Count a list and everything in it, as often as it occurs."""
    containers, size = [value], 0
    while containers and size <= MAX_TEXT:
        container = containers.pop()
        _spend(STEP + _ITEM * len(container))
        for item in container.items() if isinstance(container, Mapping) else container:
            size += len(item) if isinstance(item, str) else 1
            if isinstance(item, list | tuple | Mapping):
                containers.append(item)
    _spend_text(size)


def multiply(left: Any, right: Any) -> Any:
    """Return a product; raises TemplateLimitError if it is too large."""
    for value, count in ((left, right), (right, left)):
        if isinstance(value, str) and isinstance(count, int):
            _spend_text(len(value) * max(count, 0))
        elif isinstance(value, list | tuple) and isinstance(count, int):
            _spend_items(len(value) * max(count, 0))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    return left * right


def power(left: Any, right: Any) -> Any:
    """Return a power; raises TemplateLimitError if it is too large."""
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))
    return left**right


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise TemplateLimitError(f"computes a number of more than {_MAX_BITS:,} bits")


def modulo(left: Any, right: Any) -> Any:
    """Return a remainder, or a formatted text; raises TemplateLimitError for wide fields."""
    return formatted(left) % (WIDTHS - right if isinstance(left, str) and "*" in left else right)


def formatted(text: Any) -> Any:
    """Return a text to format; raises TemplateLimitError for wide fields in it."""
    if isinstance(text, str) and re.search(r"[%{][^%{}\s]*\d{7}", text):
        raise TemplateLimitError(f"formats a field wider than {_MAX_ITEMS:,} characters")
    return text


def replace(text: Any, *arguments: Any) -> Any:
    """Return a text with parts replaced; raises TemplateLimitError if it is too long."""
    if len(arguments) > 1 and all(isinstance(each, str) for each in (text, *arguments[:2])):
        _spend_text(text.count(arguments[0]) * len(arguments[1]) + len(text))
    return text.replace(*arguments)


def strftime_now(form: str) -> str:
    """Return the same date every day: a run that is resumed tomorrow must read the same tokens."""
    return _TODAY.strftime(form)

"""Text from anywhere made safe to show, and JSON from anywhere made safe to read."""

from __future__ import annotations

import json

import pytest

from kitchen.errors import DataError
from kitchen.safe_text import escape_controls, escape_json_controls, read_json

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
UNSAFE = f"\x00\x07\x1b\r\x7f\x80\x9b\x9f{BIDI}\u2028\ud800"
KEPT = "tab\tand\nline, naïve, 你好, שלום, 👩\u200d🍳"


def test_control_characters_are_shown_as_escapes() -> None:
    assert escape_controls("a\x1b[2J\x9b1m\u202eb") == r"a\x1b[2J\x9b1m\u202eb"
    escaped = escape_controls(UNSAFE)
    assert escaped.isascii()
    assert escaped.isprintable()


def test_ordinary_text_is_not_escaped() -> None:
    assert escape_controls(KEPT) == KEPT
    assert escape_json_controls(KEPT) == KEPT


def test_escaped_json_reads_as_before() -> None:
    text = json.dumps({UNSAFE: [UNSAFE, KEPT]}, ensure_ascii=False)
    escaped = escape_json_controls(text)
    assert not set(escaped) & set(UNSAFE)
    assert json.loads(escaped) == json.loads(text)


def test_errors_escape_what_they_quote() -> None:
    assert str(DataError("row\u202e 1\x9b: \n no")) == "row\\u202e 1\\x9b: \n no"


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("depth", [250, 900, 50_000])
def test_json_nested_too_deeply_is_no_json(opening: str, depth: int) -> None:
    closing = "".join({"[": "]", "{": "}"}.get(mark, "") for mark in reversed(opening))
    text = f"{opening * depth}1{closing * depth}"
    with pytest.raises(ValueError, match="nested more than 200 levels"):
        read_json(text)
    with pytest.raises(ValueError, match="nested more than 200 levels"):
        read_json(text.encode())


def test_long_json_may_have_any_number_of_values() -> None:
    value = [[{"a": [number]}] for number in range(1000)]
    assert read_json(json.dumps(value)) == value
    assert read_json("[" * 150 + "]" * 150)

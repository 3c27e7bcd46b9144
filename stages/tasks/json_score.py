"""Comparison of answers with reference answers, as text or as JSON objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from kitchen.errors import DataError

# a block of code in Markdown: its first line may name the language
_FENCE = re.compile(
    r"^[ \t]*```[ \t]*(?:json[c5]?)?[ \t]*\r?\n(.*?)\n?[ \t]*```[ \t]*$", re.S | re.M | re.I
)


@dataclass(frozen=True)
class JsonScore:
    """The score of an answer against a reference JSON object."""

    exact: bool
    f1: float  # 0..1, over the fields of the two objects
    parsed: bool  # whether the answer is a JSON object


def default_metric(references: Iterable[str]) -> Literal["json", "text"]:
    """Return "json" if every reference answer is a JSON object, else "text"."""
    is_object = [_parse(text) is not None for text in references]
    return "json" if is_object and all(is_object) else "text"


def exact_match(answer: str, reference: str) -> bool:
    """Return whether two texts are equal, ignoring white space around them."""
    return answer.strip() == reference.strip()


def score_json(answer: str, reference: str) -> JsonScore:
    """Compute F1 = 2 TP / (fields answered + fields expected); a hit is an equal key and value.

    Both are strict JSON objects, alone or in the only code fence of a text; any other answer, or
    one that repeats a key, scores 0. 1 equals 1.0, true equals no number, and the order of keys is
    free.
    Raises DataError if the reference is not a JSON object.
    """
    expected = _parse(reference)
    if expected is None:
        raise DataError(
            f"{reference[:80]!r} is not a JSON object, so answers cannot be scored as one; compare "
            "them as text (evaluation.metric=text or reward=exact)"
        )
    fields = _parse(answer)
    if fields is None:
        return JsonScore(exact=False, f1=0.0, parsed=False)
    hits = sum(key in expected and _equal(value, expected[key]) for key, value in fields.items())
    total = len(fields) + len(expected)
    return JsonScore(exact=2 * hits == total, f1=2 * hits / total if total else 1.0, parsed=True)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)


def _parse(text: str) -> dict[str, Any] | None:
    fenced = _FENCE.findall(text)
    if len(fenced) == 1 and text.count("```") == 2:
        text = fenced[0]
    try:
        value = json.loads(
            text, object_pairs_hook=_object_without_duplicates, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError):  # a model may well answer with a thousand brackets
        return None
    return value if isinstance(value, dict) else None


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

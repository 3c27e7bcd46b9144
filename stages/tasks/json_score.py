"""Answers compared with what was wanted, as texts or as JSON objects."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from kitchen.errors import DataError


@dataclass(frozen=True)
class JsonScore:
    """How near an answer comes to a wanted JSON object."""

    exact: bool
    f1: float  # 0..1, over the fields of the two objects
    parsed: bool  # whether the answer is a JSON object at all


def default_metric(wanted: Iterable[str]) -> Literal["json", "text"]:
    """ "json" if every wanted text is a JSON object, else "text"."""
    objects = [_parsed(text) is not None for text in wanted]
    return "json" if objects and all(objects) else "text"


def exact_match(answer: str, wanted: str) -> bool:
    """Equal but for white space around them."""
    return answer.strip() == wanted.strip()


def score_json(answer: str, wanted: str) -> JsonScore:
    """F1 = 2 TP / (fields answered + fields wanted), a field being right if its key and its value
    are.

    Both are strict JSON objects, white space around them allowed; an answer that is none, or that
    names a key twice, scores 0. 1 equals 1.0, true equals no number, the order of keys is free.
    Raises DataError if `wanted` is none.
    """
    right = _parsed(wanted)
    if right is None:
        raise DataError(
            f"{wanted[:80]!r} is not a JSON object, so answers cannot be scored as one; compare "
            "them as "
            "texts (metric=text, reward=exact)"
        )
    given = _parsed(answer)
    if given is None:
        return JsonScore(exact=False, f1=0.0, parsed=False)
    hits = sum(key in right and _same(value, right[key]) for key, value in given.items())
    fields = len(given) + len(right)
    return JsonScore(exact=2 * hits == fields, f1=2 * hits / fields if fields else 1.0, parsed=True)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refused)
    except (ValueError, RecursionError):  # a model may well answer with a thousand brackets
        return None
    return value if isinstance(value, dict) else None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is named twice")
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

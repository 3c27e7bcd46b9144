"""Values as JSON and back, and types that cannot be stored."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import pytest

from kitchen import Facts, Metrics
from kitchen.engine.codec import decode, encode, why_not_serializable
from kitchen.ports import Done, Sampler


@dataclass(frozen=True)
class Best:
    value: float
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Best, Best(-math.inf, ("a", "é"))),
        (Best, Best(0.1 + 0.2)),
        (Metrics, Metrics(loss=1e-300, reward=math.inf)),
    ],
)
def test_values_survive_encoding(kind: Any, value: Any) -> None:
    decoded = decode(kind, asyncio.run(encode(kind, value)))
    assert decoded == value
    assert type(decoded) is kind


def test_nan_survives_encoding() -> None:
    assert math.isnan(decode(Best, asyncio.run(encode(Best, Best(math.nan)))).value)


def test_futures_are_encoded_as_their_values() -> None:
    assert decode(Best, asyncio.run(encode(Best, Done(Best(1.0))))) == Best(1.0)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Best, ""), (None, "no value"), (Facts, "Facts"), (Sampler, "cannot serialize Sampler")],
)
def test_types_that_cannot_be_stored_say_why(kind: Any, reason: str) -> None:
    text = why_not_serializable(kind)
    assert reason in text
    assert bool(text) == bool(reason)

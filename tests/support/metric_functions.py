"""Metrics as users write them; the module imports little, so that workers start quickly."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any


def words(answer: str, must: list[str]) -> float:
    return sum(word in answer for word in must)


async def same(answer: str, reference: str, row: Mapping[str, Any]) -> float | None:
    return None if not answer else float(answer == reference) + ("must" in row)


def fails_at_end(answer: str) -> float:
    return {"a": 1.0, "b": float("nan")}[answer[-1:]]


def chats(answer: str) -> Any:
    from kitchen.ports.environments import StepResult

    return StepResult(1.0, ({"role": "user", "content": "And?"},))


def truncated(answer: str) -> float:
    return 1.0


def negative(answer: str) -> float:
    return -float(len(answer))


async def hangs(answer: str) -> float:
    await asyncio.Event().wait()
    return 1.0


def share(answer: str) -> float:
    return float(answer != "x")


def too_high(answer: str) -> float:
    return 1.5


share.bounds = too_high.bounds = (0, 1)  # type: ignore[attr-defined]


def wrong_bounds(answer: str) -> float:
    return 1.0


wrong_bounds.bounds = 1  # type: ignore[attr-defined]

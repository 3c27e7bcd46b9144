"""What samplers are asked for, and the tickets for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from kitchen.errors import ConfigError, DataError, KitchenError
from kitchen.types import Sampled, Tokens

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Sampling:
    """Completions of one prompt."""

    prompt: Tokens
    count: int
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: Sequence[str] | Sequence[int]
    work: concurrent.futures.Future[Sequence[Sampled]] = field(default_factory=concurrent.futures.Future)

    @property
    def tokens(self) -> Tokens:
        return self.prompt

    def problem(self, vocabulary: int, context: int) -> KitchenError | None:
        rules = {
            f"count is {self.count}, and must be at least 1": self.count >= 1,
            f"max_tokens is {self.max_tokens}, and must be at least 1": self.max_tokens >= 1,
            f"temperature is {self.temperature}, and must be at least 0": self.temperature >= 0,
            f"top_p is {self.top_p}, and must be above 0 and at most 1": 0 < self.top_p <= 1,
            f"top_k is {self.top_k}, and must be at least 0": self.top_k >= 0,
            f"seed is {self.seed}, and must be at least 0": self.seed >= 0,
            f"stop is {self.stop!r}, and must be a list of strings or token ids": not isinstance(self.stop, str),
            f"stop is {self.stop!r}, and an empty string stops nothing": "" not in list(self.stop),
        }
        broken = [text for text, kept in rules.items() if not kept]
        return ConfigError("; ".join(broken)) if broken else unreadable(self.prompt, vocabulary, context)


@dataclass(frozen=True, eq=False)
class Scoring:
    """Log-probabilities of a sequence; with k, those of the k likeliest tokens at each position."""

    tokens: Tokens
    k: int = 0
    work: concurrent.futures.Future[Any] = field(default_factory=concurrent.futures.Future)

    def problem(self, vocabulary: int, context: int) -> KitchenError | None:
        if not 0 <= self.k <= vocabulary:
            return ConfigError(f"k is {self.k}, and must be from 1 to the vocabulary of {vocabulary}")
        return unreadable(self.tokens, vocabulary, context)


Request = Sampling | Scoring


@dataclass(frozen=True)
class Asked(Generic[T]):
    """A ticket whose work begins once someone wants it, so that batches form by request order and not by timing."""

    work: concurrent.futures.Future[T]
    demand: Callable[[], None]

    def result(self, timeout: float | None = None) -> T:
        self.demand()
        return self.work.result(timeout)

    def __await__(self) -> Generator[Any, Any, T]:
        return self._arrive().__await__()

    async def _arrive(self) -> T:
        await asyncio.sleep(0)  # the other tasks of the same gather make their requests first
        self.demand()
        return await asyncio.wrap_future(self.work)


def unreadable(tokens: Tokens, vocabulary: int, context: int) -> KitchenError | None:
    ids = np.asarray(tokens)
    if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
        return DataError(f"the prompt has shape {ids.shape} and dtype {ids.dtype}, not (T,) integers with T at least 1")
    if len(ids) > context:
        return DataError(f"the prompt has {len(ids)} tokens, more than the model's context of {context}")
    if ids.min() < 0 or ids.max() >= vocabulary:
        bad = ids[(ids < 0) | (ids >= vocabulary)][0]
        return DataError(f"the prompt has token {bad}, outside the vocabulary of {vocabulary}")
    return None

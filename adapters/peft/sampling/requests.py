"""What samplers are asked for, and the tickets for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Generic, TypeVar

from adapters.peft.runtime.worker import no_turn_in_a_turn
from kitchen.backend.sampling_checks import unfit, unreadable
from kitchen.errors import ConfigError, KitchenError
from kitchen.ports.future import Pending
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
    work: concurrent.futures.Future[Sequence[Sampled]] = field(
        default_factory=concurrent.futures.Future
    )

    def problem(self, vocabulary: int, context: int) -> KitchenError | None:
        wrong = unfit(
            count=self.count,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=self.stop,
        )
        return wrong or unreadable(self.prompt, vocabulary=vocabulary, context=context)


@dataclass(frozen=True, eq=False)
class Scoring:
    """Log-probabilities of a sequence; with k, those of the k likeliest tokens at each position."""

    tokens: Tokens
    k: int | None = None
    work: concurrent.futures.Future[Any] = field(default_factory=concurrent.futures.Future)

    def problem(self, vocabulary: int, context: int) -> KitchenError | None:
        if self.k is not None and not (isinstance(self.k, Integral) and 1 <= self.k <= vocabulary):
            return ConfigError(
                f"k is {self.k!r}, and must be a whole number from 1 to the vocabulary of "
                f"{vocabulary}"
            )
        return unreadable(self.tokens, vocabulary=vocabulary, context=context)


Request = Sampling | Scoring


def answer(request: Request, value: Any) -> None:
    """Unless nobody waits for it any more: until it has its answer, a request can be cancelled."""
    if request.work.set_running_or_notify_cancel():
        request.work.set_result(value)


def fail(request: Request, error: BaseException) -> None:
    """One that has no answer yet."""
    if not request.work.done() and request.work.set_running_or_notify_cancel():
        request.work.set_exception(error)


def _not_in_a_turn(work: concurrent.futures.Future[Any]) -> None:
    """Raises RunFailed where a loss waits for what was asked before and has not had its turn."""
    if not work.done() and (why := no_turn_in_a_turn()):
        raise why


@dataclass(frozen=True)
class Submitted(Pending[T]):
    """A ticket for the work of a worker."""

    def result(self, timeout: float | None = None) -> T:
        _not_in_a_turn(self.work)
        return super().result(timeout)


@dataclass(frozen=True)
class Asked(Generic[T]):
    """A ticket whose work begins once someone wants it, so that batches form by request order and
    not by timing.
    """

    work: concurrent.futures.Future[T]
    demand: Callable[[bool], None]  # told whether a thread blocks until the answer is there

    def result(self, timeout: float | None = None) -> T:
        _not_in_a_turn(self.work)
        self.demand(True)
        return self.work.result(timeout)

    def __await__(self) -> Generator[Any, Any, T]:
        return self._arrive().__await__()

    async def _arrive(self) -> T:
        try:
            await asyncio.sleep(0)  # the other tasks of the same gather make their requests first
        except asyncio.CancelledError:
            self.work.cancel()
            raise
        self.demand(False)
        return await asyncio.wrap_future(self.work)

"""Requests to a sampler, and the futures that callers wait on."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Generic, TypeVar

import numpy as np

from adapters.peft.runtime.worker import nested_call_error
from kitchen.backend.sampling_checks import prompt_error, sampling_error, targets_error
from kitchen.errors import ConfigError, KitchenError
from kitchen.ports.future import Pending
from kitchen.types import Datum, Sampled, Tokens

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class SamplingRequest:
    """A request for completions of one prompt."""

    prompt: Tokens
    count: int
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: Sequence[str] | Sequence[int]
    # called with the index of a completion and each of its tokens
    on_token: Callable[[int, int], object] | None = None
    work: concurrent.futures.Future[Sequence[Sampled]] = field(
        default_factory=concurrent.futures.Future
    )

    def problem(self, vocabulary: int, context: int) -> KitchenError | None:
        """Return the error for a request that cannot be served, or None."""
        error = sampling_error(
            count=self.count,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=self.stop,
        )
        return error or prompt_error(self.prompt, vocabulary=vocabulary, context=context)


@dataclass(frozen=True, eq=False)
class ScoringRequest:
    """A request for log-probabilities of a sequence.

    With `k`, of the k likeliest tokens instead; with `targets`, of those (T - 1, K) ids at the
    positions after the first.
    """

    tokens: Tokens
    k: int | None = None
    targets: Tokens | None = None  # -1 for no token
    work: concurrent.futures.Future[Any] = field(default_factory=concurrent.futures.Future)

    def problem(self, vocabulary: int, context: int) -> KitchenError | None:
        """Return the error for a request that cannot be served, or None."""
        if self.k is not None and not (isinstance(self.k, Integral) and 1 <= self.k <= vocabulary):
            return ConfigError(
                f"k is {self.k!r}, and must be a whole number from 1 to the vocabulary of "
                f"{vocabulary}"
            )
        error = prompt_error(self.tokens, vocabulary=vocabulary, context=context)
        return error or targets_error(self.tokens, self.targets, vocabulary=vocabulary)

    def datum(self) -> Datum:
        """Return the tokens that are read, and those that are scored."""
        if self.targets is None:
            return Datum(self.tokens[:-1], {"target_tokens": self.tokens[1:]})
        return Datum(self.tokens[:-1], {"target_tokens": np.maximum(self.targets, 0)})


Request = SamplingRequest | ScoringRequest


def resolve(request: Request, value: Any) -> None:
    """Set the result, unless the request was cancelled before."""
    if request.work.set_running_or_notify_cancel():
        request.work.set_result(value)


def reject(request: Request, error: BaseException) -> None:
    """Set the error of a request that has no result yet."""
    if not request.work.done() and request.work.set_running_or_notify_cancel():
        request.work.set_exception(error)


def _refuse_deadlock(work: concurrent.futures.Future[Any]) -> None:
    """Raise RunFailed where a custom loss waits for work that is queued behind that loss."""
    if not work.done() and (error := nested_call_error()):
        raise error


@dataclass(frozen=True)
class SubmittedFuture(Pending[T]):
    """The future of work that a worker already has in its queue."""

    def result(self, timeout: float | None = None) -> T:
        _refuse_deadlock(self.work)
        return super().result(timeout)


@dataclass(frozen=True)
class LazyFuture(Generic[T]):
    """A future whose work starts when it is first awaited.

    Batches are therefore formed by the order of requests and not by timing.
    """

    work: concurrent.futures.Future[T]
    start: Callable[[bool], None]  # takes whether a thread blocks until the result

    def result(self, timeout: float | None = None) -> T:
        _refuse_deadlock(self.work)
        self.start(True)
        return self.work.result(timeout)

    def __await__(self) -> Generator[Any, Any, T]:
        return self._arrive().__await__()

    async def _arrive(self) -> T:
        try:
            await asyncio.sleep(0)  # the other tasks of the same gather make their requests first
        except asyncio.CancelledError:
            self.work.cancel()
            raise
        self.start(False)
        return await asyncio.wrap_future(self.work)

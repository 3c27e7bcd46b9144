"""Samplers in simulated time whose latencies and errors are given."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kitchen.backend.hedging.race import Cancellable
from kitchen.errors import BackendError
from kitchen.ports.future import Future, Pending
from kitchen.types import Floats, Sampled, Tokens
from tests.support.event_clock import EventClock

FAILS = 1000.0  # added to a latency: the answer is then an error


class KeptAnswer(Cancellable[Any]):
    """An answer that takes a while to read, and for which no server is asked."""

    was_sent = False


@dataclass
class SlowSampler:
    """Answers each request after the next latency; the answer depends on the seed alone."""

    clock: EventClock
    latencies: Iterator[float]
    cancellable: bool = True
    name: str = "server"
    seeds: list[int] = field(default_factory=list)  # of the requests
    cancelled: int = 0
    closed: int = 0
    refusals: int = 0  # requests from now on that cannot be sent
    keeps: bool = False  # whether it asks no server, as its answers were kept

    def sample(self, prompt: Tokens, *, seed: int = 0, **_: Any) -> Future[Sequence[Sampled]]:
        if self.refusals:
            self.refusals -= 1
            raise BackendError(f"{self.name} cannot be opened")
        self.seeds.append(seed)
        token = np.array([seed])
        return self._answer([Sampled(token, token.astype(np.float32), "stop")])

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        return self._answer(tokens.astype(np.float32))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        return self._answer((tokens, tokens.astype(np.float32)))

    def close(self) -> None:
        self.closed += 1

    def _answer(self, value: Any) -> Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        seconds = next(self.latencies)
        due: Callable[[], object] = lambda: future.set_result(value)  # noqa: E731
        if seconds >= FAILS:
            seconds -= FAILS
            due = lambda: future.set_exception(BackendError(f"{self.name} failed"))  # noqa: E731
        stop = self.clock.call_later(seconds, due)

        def cancel() -> None:
            self.cancelled += 1
            stop()

        if self.keeps:
            return KeptAnswer(future, cancel)
        return Cancellable(future, cancel) if self.cancellable else Pending(future)

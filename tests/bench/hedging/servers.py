"""Simulated servers: with independent latencies, with a shared queue, and with an outage."""

from __future__ import annotations

import concurrent.futures
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kitchen.backend.hedging.race import Cancellable
from kitchen.ports.future import Future, Pending
from kitchen.types import Floats, Sampled, Tokens
from tests.support.event_clock import EventClock

Draw = Callable[[np.random.Generator, int], float]  # seconds, for the request with this seed
ANSWER = [Sampled(np.zeros(1, np.int64), np.zeros(1, np.float32), "stop")]


def lognormal(sigma: float) -> Draw:
    return lambda random, seed: float(random.lognormal(0, sigma))


def exponential(random: np.random.Generator, seed: int) -> float:
    return float(random.exponential())


def stragglers(random: np.random.Generator, seed: int) -> float:
    """1 second, give or take 10 %, and ten times as long for 2 % of the requests."""
    return float(random.lognormal(0, 0.1)) * (10 if random.random() < 0.02 else 1)


def of_the_request(random: np.random.Generator, seed: int) -> float:
    """2 % stragglers that are as slow on every server."""
    own = np.random.default_rng(seed)
    return stragglers(own, seed)


@dataclass(eq=False)
class Job:
    """One request on a server."""

    future: concurrent.futures.Future[Any]
    seconds: float  # of work
    stop: Callable[[], object] | None = None  # while it runs
    is_dropped: bool = False


@dataclass(eq=False)
class Server:
    """Works on some requests at a time, first come, first served."""

    clock: EventClock
    draw: Draw
    workers: float = float("inf")
    cancels: bool = True  # without, an answer that nobody needs is computed nevertheless
    seed: int = 0
    busy: int = 0
    requests: int = 0
    queue: deque[Job] = field(default_factory=deque)
    away: tuple[float, float] = (float("inf"), float("inf"))  # from when to when it is silent
    timeout: float = 20.0  # until its client gives it up while it is away
    fallback: Server | None = None  # which then gets the request

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def sample(self, prompt: Tokens, *, seed: int = 0, **_: Any) -> Future[Any]:
        self.requests += 1
        job = Job(concurrent.futures.Future(), self.draw(self.random, seed))
        if self.away[0] <= self.clock.now() < self.away[1]:
            self.clock.call_later(self.timeout, lambda: self._give_up(job))
        else:
            self.queue.append(job)
            self._work()
        if not self.cancels:
            return Pending(job.future)
        return Cancellable(job.future, lambda: self._cancel(job))

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        raise NotImplementedError

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def _work(self) -> None:
        while self.queue and self.busy < self.workers:
            job = self.queue.popleft()
            if not job.is_dropped:
                self.busy += 1
                job.stop = self.clock.call_later(job.seconds, partial(self._finish, job))

    def _finish(self, job: Job) -> None:
        self.busy -= 1
        job.stop = None
        if self.away[0] <= self.clock.now() < self.away[1]:
            self.clock.call_later(self.timeout, lambda: self._give_up(job))
        else:
            job.future.set_result(ANSWER)
        self._work()

    def _give_up(self, job: Job) -> None:
        if not job.is_dropped and self.fallback is not None:
            again = self.fallback.sample(np.zeros(1, np.int64))
            assert isinstance(again, Pending)
            again.work.add_done_callback(lambda done: job.future.set_result(done.result()))

    def _cancel(self, job: Job) -> None:
        job.is_dropped = True
        if job.stop is not None:
            job.stop()
            job.stop = None
            self.busy -= 1
            self._work()

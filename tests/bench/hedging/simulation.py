"""Hedged requests in simulated time: python -m tests.bench.hedging.simulation prints the tables.

The first table is of the policy "a second request after the 95th percentile, always", without
anything that makes it safe. The second is of `Hedged` itself, and the third of batches of requests
that are sent at once. The median latency of one request without a queue is about 1 second. All is
seeded, so the tables are always the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kitchen.backend.hedging.hedged import Hedged
from kitchen.ports.future import Future, Pending
from kitchen.types import Array
from tests.bench.hedging.servers import (
    Draw,
    Server,
    exponential,
    lognormal,
    of_the_request,
    stragglers,
)
from tests.support.event_clock import EventClock

REQUESTS = 20_000
BATCH = 400
PROMPT = np.arange(8)


@dataclass(frozen=True)
class Measured:
    """Seconds until each answer, or until each batch was complete, and the extra requests."""

    seconds: Array
    extra: float  # of the requests

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


@dataclass(frozen=True)
class Policy:
    """When a second request is sent; None for never."""

    delay: str | None = None
    extra: float = 0.05
    cancels: bool = True

    def sampler(self, servers: list[Server], clock: EventClock) -> Any:
        primary, *backups = servers
        if self.delay is None:
            return primary
        return Hedged(primary, backups, self.delay, self.extra, clock=clock)

    def __str__(self) -> str:
        return f"`{self.delay}`" + ("" if self.cancels else ", not cancelled")


@dataclass(frozen=True)
class Scenario:
    """Servers, of which the first is the primary, and the number of requests per second."""

    name: str
    build: Callable[[EventClock, bool], list[Server]]  # the bool: requests can be cancelled
    rate: float = 5.0

    def run(self, policy: Policy, requests: int) -> Measured:
        """Send requests at random times."""
        clock = EventClock()
        sampler = policy.sampler(self.build(clock, policy.cancels), clock)
        seconds = list[float]()

        def send(seed: int) -> None:
            started = clock.now()
            future = sampler.sample(PROMPT, max_tokens=8, seed=seed)
            when_done(future, lambda: seconds.append(clock.now() - started))

        times = np.cumsum(np.random.default_rng(1).exponential(1 / self.rate, requests))
        for seed, time in enumerate(times):
            clock.call_later(float(time), partial(send, seed))
        clock.run()
        assert len(seconds) == requests, "answers were lost"
        return Measured(np.array(seconds), share_of_extra(sampler))

    def run_batches(self, policy: Policy, requests: int) -> Measured:
        """Send batches of requests, each when the one before is complete."""
        clock = EventClock()
        sampler = policy.sampler(self.build(clock, policy.cancels), clock)
        seconds = list[float]()
        for batch in range(requests // BATCH):
            started = clock.now()
            futures = [
                sampler.sample(PROMPT, max_tokens=8, seed=batch * BATCH + n) for n in range(BATCH)
            ]
            pending = set(range(BATCH))
            for n, future in enumerate(futures):
                when_done(future, partial(pending.discard, n))
            while pending:
                clock.step()
            seconds.append(clock.now() - started)
        return Measured(np.array(seconds), share_of_extra(sampler))


def when_done(future: Future[Any], callback: Callable[[], object]) -> None:
    assert isinstance(future, Pending)
    future.work.add_done_callback(lambda _: callback())


def share_of_extra(sampler: Any) -> float:
    if not isinstance(sampler, Hedged):
        return 0.0
    return sampler.hedging.counts.extra / sampler.hedging.counts.requests


def independent(draw: Draw) -> Callable[[EventClock, bool], list[Server]]:
    return lambda clock, cancels: [Server(clock, draw, cancels=cancels, seed=n) for n in (0, 1)]


def shared(workers: int) -> Callable[[EventClock, bool], list[Server]]:
    """Return one server with a queue, which is also its own backup."""
    return lambda clock, cancels: [Server(clock, exponential, workers, cancels)] * 2


def outage(clock: EventClock, cancels: bool) -> list[Server]:
    """Return two servers, of which the first is silent for 400 seconds."""
    first, second = independent(stragglers)(clock, cancels)
    first.away, first.fallback = (1000.0, 1400.0), second
    return [first, second]


STRAGGLERS = Scenario("2 % stragglers, ten times as slow", independent(stragglers))
OF_THE_REQUEST = Scenario("2 % slow requests, slow everywhere", independent(of_the_request))
ONE_WORKER = Scenario("one queue, 1 worker, 60 % load", shared(1), rate=0.6)
TEN_WORKERS = Scenario("one queue, 10 workers, 60 % load", shared(10), rate=6.0)
OUTAGE = Scenario("the first of two servers is away for 400 s", outage)
SCENARIOS = (
    Scenario("lognormal, sigma 0.5", independent(lognormal(0.5))),
    Scenario("lognormal, sigma 1", independent(lognormal(1.0))),
    STRAGGLERS,
    OF_THE_REQUEST,
    ONE_WORKER,
    TEN_WORKERS,
)
POLICIES = (
    Policy("percentile:0.95"),
    Policy("percentile:0.95", cancels=False),
    Policy("adaptive"),
)


def unbounded(requests: int) -> Iterator[tuple[str, ...]]:
    """Yield rows of the policy without a budget, with the 95th percentile known beforehand."""
    for scenario in SCENARIOS:
        before = scenario.run(Policy(), requests)
        for cancels in (True, False):
            policy = Policy(f"fixed:{before.quantile(0.95)}", 1.0, cancels)
            name = "cancelled" if cancels else "not cancelled"
            yield row(scenario.name, name, before, scenario.run(policy, requests))


def hedged(requests: int) -> Iterator[tuple[str, ...]]:
    """Yield rows of `Hedged`, which learns its delay."""
    for scenario in (*SCENARIOS, OUTAGE):
        before = scenario.run(Policy(), requests)
        for policy in POLICIES:
            yield row(scenario.name, str(policy), before, scenario.run(policy, requests))


def batches(requests: int) -> Iterator[tuple[str, ...]]:
    """Yield rows of the time until batches are complete."""
    for scenario in (*SCENARIOS[:4], Scenario("one queue, 10 workers", shared(10))):
        before = scenario.run_batches(Policy(), requests)
        for policy in POLICIES:
            after = scenario.run_batches(policy, requests)
            mean = before.seconds.mean(), after.seconds.mean()
            yield (
                scenario.name,
                str(policy),
                f"{mean[0]:.2f} → {mean[1]:.2f}",
                f"{mean[1] / mean[0] - 1:+.0%}",
                f"{after.extra:.1%}",
            )


def row(scenario: str, policy: str, before: Measured, after: Measured) -> tuple[str, ...]:
    change = after.quantile(0.99) / before.quantile(0.99) - 1
    return (
        scenario,
        policy,
        f"{before.quantile(0.5):.2f} → {after.quantile(0.5):,.2f}",
        f"{before.quantile(0.99):.2f} → {after.quantile(0.99):,.2f}",
        f"{change:+,.0%}",
        f"{after.extra:.1%}",
    )


def table(rows: Iterable[tuple[str, ...]], *columns: str) -> str:
    head = ("servers", *columns, "extra requests")
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    requests = parser.parse_args().requests
    columns = ("p50, s", "p99, s", "change of p99")
    print(f"Without a budget\n\n{table(unbounded(requests), 'the loser is', *columns)}\n")
    print(f"Hedged, extra=0.05\n\n{table(hedged(requests), 'policy', *columns)}\n")
    columns = ("policy", "mean time of a batch, s", "change")
    print(f"Batches of {BATCH}\n\n{table(batches(requests), *columns)}")


if __name__ == "__main__":
    main()

"""Hedged requests over loopback: python -m tests.bench.hedging.loopback [--seconds 120].

The adapter for the Tinker API samples from two `kitchen serve` with a stand-in for a model. Their
answers are held back by injected latencies, UNIT seconds for most. Prints a table of what was
measured; exits with 1 if an answer was lost or wrong.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.server.serve import TinkerServer
from kitchen.ports.future import Pending
from kitchen.types import Array
from tests.support.slow_app import Latency, SlowApp
from tests.support.tinker_server import KEY, MODELS, ByteTinker, RunningServer

PROMPT = np.arange(1, 9)
UNIT = 0.5  # seconds: the usual latency
AWAY = 5.0  # seconds without an answer until the adapter gives a server up
POLICIES = (None, "percentile:0.95", "adaptive")


class SharedQueue:
    """One worker behind both servers, which takes exponential times, a mean of UNIT / 2."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._free_at = 0.0
        self._lock = threading.Lock()

    def __call__(self, number: int) -> float:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + self._random.exponential(UNIT / 2)
            return self._free_at - now


def straggling(seed: int) -> Latency:
    """Return latencies of UNIT, give or take 10 %, and ten times as long for 2 %."""
    random = np.random.default_rng(seed)
    lock = threading.Lock()

    def latency(number: int) -> float:
        with lock:
            return UNIT * random.lognormal(0, 0.1) * (10 if random.random() < 0.02 else 1)

    return latency


@dataclass(frozen=True)
class Scenario:
    """Latencies of two servers, and requests per second."""

    name: str
    latencies: Callable[[], Sequence[Latency]]
    rate: float
    has_outage: bool = False  # the replica is silent from the middle on


SCENARIOS = (
    Scenario("2 % stragglers", lambda: [straggling(0), straggling(1)], 4 / UNIT),
    Scenario("shared queue, 60 % load", lambda: [SharedQueue()] * 2, 0.6 / (UNIT / 2)),
    Scenario("outage", lambda: [straggling(0), straggling(1)], 4 / UNIT, has_outage=True),
)


@contextmanager
def servers(latencies: Sequence[Latency]) -> Iterator[tuple[list[str], list[SlowApp]]]:
    blobs = FakeBlobs()
    apps = [
        SlowApp(
            TinkerServer(FakeTraining(blobs), FakeHub(MODELS), blobs).app(
                ["tiny"], {}, KEY, replica=number > 0
            ),
            latency,
        )
        for number, latency in enumerate(latencies)
    ]
    running = [RunningServer(app) for app in apps]
    yield [server.url for server in running], apps
    for app in apps:
        app.is_away.clear()
    for server in running:
        server.stop()


def measure(scenario: Scenario, hedge: str | None, requests: int) -> tuple[Array, float, int]:
    """Return the seconds until each answer, the share of extra requests, and wrong answers."""
    expected = FakeTraining(FakeBlobs()).sampler("tiny")
    with servers(scenario.latencies()) as (urls, apps):
        client = ByteTinker(FakeBlobs(), urls, hedge=hedge, away=AWAY, patience=1.0)
        sampler = client.sampler("tiny")
        for _ in range(8):  # connections open
            sampler.sample(PROMPT, max_tokens=2).result(60)
        warm_up = sum(app.samples for app in apps)
        futures, ends = send(scenario, sampler, apps[1], requests)
        answers = [future.result(120)[0].tokens for future in futures]
        sent = sum(app.samples for app in apps) - warm_up
        sampler.close()
    wrong = sum(
        not np.array_equal(
            answer, expected.sample(PROMPT, max_tokens=2, seed=seed).result()[0].tokens
        )
        for seed, answer in enumerate(answers)
    )
    counts = client.hedge_counts
    extra = counts.extra / counts.requests if counts else sent / requests - 1
    return np.array([ends[seed] for seed in range(requests)]), extra, wrong


def send(
    scenario: Scenario, sampler: Any, replica: SlowApp, requests: int
) -> tuple[list[Any], dict[int, float]]:
    """Send requests at random times, and return their futures, and seconds by their number."""
    random = np.random.default_rng(2)
    futures, ends = list[Any](), dict[int, float]()
    started = time.monotonic()
    for seed, due in enumerate(np.cumsum(random.exponential(1 / scenario.rate, requests))):
        time.sleep(max(started + due - time.monotonic(), 0.0))
        if scenario.has_outage and seed == requests // 2:
            replica.is_away.set()
        begin = time.monotonic()
        future = sampler.sample(PROMPT, max_tokens=2, seed=seed)
        assert isinstance(future, Pending)

        def on_done(_: Any, seed: int = seed, begin: float = begin) -> None:
            ends[seed] = time.monotonic() - begin

        future.work.add_done_callback(on_done)
        futures.append(future)
    return futures, ends


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="for each row")
    seconds_per_row = parser.parse_args().seconds
    os.environ["TINKER_API_KEY"], os.environ["TINKER_TELEMETRY"] = KEY, "0"
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    any_wrong = False
    print("| servers | `hedge` | p50, s | p99, s | change of p99 | extra requests |")
    print("| --- | --- | --- | --- | --- | --- |")
    for scenario in SCENARIOS:
        before = 0.0
        requests = int(seconds_per_row * scenario.rate)
        for hedge in POLICIES:
            seconds, extra, wrong = measure(scenario, hedge, requests)
            p50, p99 = np.quantile(seconds, [0.5, 0.99])
            before = before or p99
            any_wrong |= wrong > 0
            change = f"{p99 / before - 1:+.0%}" if hedge else ""
            cells = (scenario.name, f"`{hedge or 'null'}`", f"{p50:.2f}", f"{p99:.2f}", change)
            print(f"| {' | '.join(cells)} | {extra:.1%} |", flush=True)
    return int(any_wrong)


if __name__ == "__main__":
    sys.exit(main())

"""Late requests are sent to another server, or again: nothing is lost, and nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from structlog.testing import capture_logs

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.server.serve import TinkerServer
from kitchen.errors import ConfigError
from kitchen.ports.future import Future, arrival
from kitchen.ports.sampling import Sampler
from kitchen.types import Lora, Sampled
from tests.support.fake_runs import run_recipe
from tests.support.faulty_app import Fault, FaultyApp
from tests.support.slow_app import Latency, SlowApp
from tests.support.tinker_server import KEY, MODELS, ByteTinker, RunningServer

PROMPT = np.arange(1, 6)


def in_time(number: int) -> float:
    return 0.0


def late(number: int) -> float:
    return 60.0


def sometimes_late(number: int) -> float:
    """Return a minute for every 40th of the first requests; the others are in time."""
    return 60.0 if number < 160 and number % 40 == 7 else 0.0


@contextmanager
def servers(*latencies: Latency) -> Iterator[tuple[list[str], list[SlowApp]]]:
    """Run a server that trains and replicas, with the latency of each; yield URLs and apps."""
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
    for server in running:
        server.stop()


def samples(sampler: Sampler, count: int) -> list[Future[Sequence[Sampled]]]:
    return [sampler.sample(PROMPT, max_tokens=8, seed=seed) for seed in range(count)]


def tokens(futures: Sequence[Future[Sequence[Sampled]]]) -> list[list[int]]:
    async def gather() -> list[Sequence[Sampled]]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*map(arrival, futures))

    return [answer[0].tokens.tolist() for answer in asyncio.run(gather())]


def test_many_samples_keep_their_order_and_none_is_lost() -> None:
    expected = tokens(samples(FakeTraining(FakeBlobs()).sampler("tiny"), 400))
    with servers(sometimes_late, sometimes_late) as (urls, apps):
        client = ByteTinker(FakeBlobs(), urls, hedge="fixed:2.0", hedge_extra=1.0)
        session = client.open("tiny", Lora(rank=4))
        sampler = session.snapshot().result(60)
        with capture_logs() as logs:
            assert tokens(samples(sampler, 400)) == expected
            sampler.close()
        session.close()
        [counts] = [entry for entry in logs if "sent again" in entry["event"]]
        assert counts["requests"] == 400
        assert counts["extra"] >= counts["won"] >= 8
        # some that lost were cancelled before they were sent
        assert 400 <= sum(app.samples for app in apps) <= 400 + counts["extra"]


@pytest.mark.parametrize("number", [1, 2])
def test_extra_request_goes_to_another_server_if_there_is_one(number: int) -> None:
    latencies: list[Latency] = [late, in_time]
    if number == 1:
        latencies = [lambda number: 60.0 if number == 0 else 0.0]
    with servers(*latencies) as (urls, apps):
        url = urls[0] if number == 1 else urls
        sampler = ByteTinker(FakeBlobs(), url, hedge="fixed:1.0", hedge_extra=1.0).sampler("tiny")
        assert len(tokens(samples(sampler, number))) == number
        assert [app.samples for app in apps] == ([2] if number == 1 else [1, 2])
        sampler.close()


def test_busy_server_gets_no_extra_request() -> None:
    """A request that is refused as too many, and sent again by the SDK, stays alone."""
    blobs = FakeBlobs()
    app = TinkerServer(FakeTraining(blobs), FakeHub(MODELS), blobs).app(["tiny"], {}, KEY)
    faulty = FaultyApp(app, (Fault("busy", "/asample", (1,)),))
    server = RunningServer(faulty)
    sampler = ByteTinker(FakeBlobs(), server.url, hedge="fixed:0.3", hedge_extra=1.0).sampler(
        "tiny"
    )
    assert tokens(samples(sampler, 1))
    assert faulty.requests["/api/v1/asample"] == 2  # the one that was refused, and its repetition
    sampler.close()
    server.stop()


@pytest.mark.usefixtures("letters")
def test_run_has_the_same_results_with_a_hedge() -> None:
    results, requests = [], []
    for settings in ({}, {"hedge": "fixed:0.001", "hedge_extra": 1.0}):
        with servers(in_time, in_time) as (urls, apps):
            blobs = FakeBlobs()
            results.append(run_recipe("rl", ByteTinker(blobs, urls, **settings), blobs))
        requests.append(sum(app.samples for app in apps))
    assert results[0] == results[1]
    assert requests[1] > requests[0]


@pytest.mark.parametrize(
    "settings",
    [{"hedge": "percentle:0.9"}, {"hedge": "adaptive", "hedge_extra": 0.0}, {"hedge_extra": 0.05}],
)
def test_wrong_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"training\.hedge"):
        ByteTinker(FakeBlobs(), "http://a", **settings)

"""The scheduler shares samplers fairly, and opens no more of them than allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from adapters.server.limits import Limits
from adapters.server.sampler_scheduler import QueuedRequest, SamplerScheduler, Weights
from kitchen.errors import BackendError, DataError
from tests.support.clock import Clock
from tests.support.virtual_time import advance, run_in_virtual_time


class Harness:
    """A scheduler over samplers whose results arrive when the test says so."""

    def __init__(self, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.clock = Clock()
        self.scheduler = SamplerScheduler(self._open, self.limits, self.clock)
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.submitted: list[str] = []
        self.results: dict[str, asyncio.Future[bytes]] = {}

    def _open(self, weights: Weights) -> Any:
        harness, name = self, str(weights)
        self.opened.append(name)

        class Sampler:
            def submit(self, label: str) -> Awaitable[bytes]:
                harness.submitted.append(label)
                harness.results[label] = asyncio.get_running_loop().create_future()
                return harness.results[label]

            def close(self) -> None:
                harness.closed.append(name)

        return Sampler()

    def submit(
        self,
        weights: str,
        client: str,
        label: str,
        number: int = 0,
        rows: int = 1,
        session: str = "s",
        error: Exception | None = None,
    ) -> asyncio.Future[Any]:
        """Submit a request; the sampler rejects it with `error` if there is one."""
        started: asyncio.Future[Awaitable[bytes]] = asyncio.get_running_loop().create_future()

        def send(sampler: Any) -> Awaitable[bytes]:
            if error is not None:
                raise error
            result: Awaitable[bytes] = sampler.submit(label)
            return result

        request = QueuedRequest(session, number, rows, send, started)
        self.scheduler.submit(weights, client, request)
        return started

    async def finish(self, *labels: str, error: Exception | None = None) -> None:
        for label in labels:
            if error is None:
                self.results[label].set_result(b"")
            else:
                self.results[label].set_exception(error)
        await self.settle()

    async def settle(self) -> None:
        """Let the scheduler gather and submit requests."""
        await advance(4 * self.limits.gather_delay)


def play(scene: Callable[[Harness], Awaitable[None]], **limits: Any) -> None:
    async def run() -> None:
        await scene(Harness(**limits))

    run_in_virtual_time(run())


def test_simultaneous_requests_run_in_order_of_number() -> None:
    async def scene(harness: Harness) -> None:
        for number in (2, 0, 1):
            harness.submit("w", "a", f"a{number}", number)
        await harness.settle()
        assert harness.submitted == ["a0", "a1", "a2"]

    play(scene)


def test_later_requests_wait_and_clients_alternate() -> None:
    async def scene(harness: Harness) -> None:
        harness.submit("w", "a", "first")
        await harness.settle()
        for number in range(3):
            harness.submit("w", "a", f"a{number}", number)
        harness.submit("w", "b", "b0")
        await harness.settle()
        assert harness.submitted == ["first"]
        await harness.finish("first")
        assert harness.submitted == ["first", "a0", "b0", "a1", "a2"]

    play(scene)


def test_busy_client_does_not_block_others() -> None:
    async def scene(harness: Harness) -> None:
        for number in range(20):
            harness.submit("w", "a", f"a{number}", number, rows=2)
        await harness.settle()
        assert harness.submitted == ["a0", "a1"]
        harness.submit("w", "b", "b0", rows=2)
        await harness.finish("a0", "a1")
        assert harness.submitted[2:] == ["a2", "b0"]

    play(scene, batch_rows=4)


def test_open_samplers_are_limited_and_none_starves() -> None:
    async def scene(harness: Harness) -> None:
        for name in "xyz":
            harness.submit(name, "a", f"{name}0")
        await harness.settle()
        assert harness.submitted == ["x0", "y0"]
        harness.submit("x", "a", "x1")  # x is open, but z has waited longer
        await harness.finish("x0")
        assert harness.submitted == ["x0", "y0", "z0"]
        assert harness.closed == ["x"]
        assert harness.scheduler.open_weights == ["y", "z"]
        await harness.finish("y0")
        assert harness.submitted[3:] == ["x1"]
        assert harness.closed == ["x", "y"]
        assert harness.opened == ["x", "y", "z", "x"]

    play(scene, open_samplers=2)


@pytest.mark.parametrize(
    "error, opened", [(BackendError("no such weights"), 2), (DataError("a token too many"), 1)]
)
def test_sampler_reopens_after_its_own_failures_only(error: Exception, opened: int) -> None:
    async def scene(harness: Harness) -> None:
        started = harness.submit("w", "a", "first")
        await harness.settle()
        await harness.finish("first", error=error)
        with pytest.raises(type(error)):
            await (await started)
        harness.submit("w", "a", "second")
        await harness.settle()
        assert harness.submitted == ["first", "second"]
        assert len(harness.opened) == opened

    play(scene)


def test_idle_sampler_is_closed() -> None:
    async def scene(harness: Harness) -> None:
        for name in "xy":
            harness.submit(name, "a", name)
        await harness.settle()
        await harness.finish("x")
        harness.scheduler.sweep()
        assert harness.closed == []
        harness.clock.now += 61
        harness.scheduler.sweep()
        assert harness.closed == ["x"], "y is busy"
        assert harness.scheduler.open_weights == ["y"]

    play(scene)


def test_abandoned_request_is_not_submitted() -> None:
    async def scene(harness: Harness) -> None:
        harness.submit("w", "a", "gone").cancel()
        harness.submit("w", "a", "there", 1)
        await harness.settle()
        assert harness.submitted == ["there"]

    play(scene)


def test_samplers_of_deleted_weights_are_closed() -> None:
    async def scene(harness: Harness) -> None:
        for name in ("own/a", "own/b", "kept"):
            harness.submit(name, "a", name)
        await harness.settle()
        harness.scheduler.close_samplers("own/")
        assert sorted(harness.closed) == ["own/a", "own/b"]
        assert harness.scheduler.open_weights == ["kept"]
        await harness.finish("own/a", "own/b", "kept")
        harness.scheduler.close()
        assert sorted(harness.closed) == ["kept", "own/a", "own/b"]

    play(scene)


def test_fully_rejected_batch_does_not_stall_the_queue() -> None:
    async def scene(harness: Harness) -> None:
        harness.submit("w", "c", "first")
        await harness.settle()
        rejected = harness.submit("w", "a", "nonsense", error=DataError("no"))
        harness.submit("w", "b", "b0")
        await harness.finish("first")
        assert harness.submitted == ["first", "b0"]
        with pytest.raises(DataError):
            await (await rejected)

    play(scene, batch_rows=1)


def test_new_queue_gathers_while_others_finish() -> None:
    async def scene(harness: Harness) -> None:
        harness.submit("x", "a", "x0")
        await harness.settle()
        harness.submit("y", "b", "y0")
        harness.results["x0"].set_result(b"")
        await advance(0.005)
        harness.submit("y", "b", "y1", 1)
        await harness.settle()
        assert harness.submitted == ["x0", "y0", "y1"]

    play(scene, gather_delay=0.05)


def test_sessions_of_one_client_take_turns() -> None:
    async def scene(harness: Harness) -> None:
        for number in range(9):
            harness.submit("w", "a", f"first{number}", number, session="1")
        harness.submit("w", "a", "second0", 0, session="2")
        await harness.settle()
        assert harness.submitted == ["first0", "second0"]

    play(scene, batch_rows=2)


def test_abandoned_request_closes_no_other_sampler() -> None:
    async def scene(harness: Harness) -> None:
        harness.submit("x", "a", "x0")
        await harness.settle()
        await harness.finish("x0")
        harness.submit("y", "b", "y0").cancel()
        await harness.settle()
        assert harness.scheduler.open_weights == ["x"]
        assert harness.closed == []

    play(scene, open_samplers=1)

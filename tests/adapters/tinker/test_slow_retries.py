"""Requests that the SDK repeats for long are reported in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from adapters.tinker.slow_retries import SlowRetries


@pytest.mark.parametrize(
    "attempts, warned_at",
    [
        ([(0, 503), (4, 503), (5, 500), (20, 503), (66, 503), (300, 503)], [5, 66, 300]),
        ([(0, 503), (4, 200), (7, 503), (11, 503)], []),
        ([(0, 429), (9, 408), (60, 404)], []),
    ],
)
def test_lasting_faults_are_reported(
    attempts: Sequence[tuple[float, int]], warned_at: Sequence[float]
) -> None:
    times = iter([time for time, status in attempts if status >= 500])
    retries = SlowRetries(after=5, interval=60, clock=lambda: next(times))

    async def send_all() -> None:
        for _, status in attempts:
            retries.add("http://localhost", "asample", status)

    with capture_logs() as entries:
        asyncio.run(send_all())
    assert [entry["seconds"] for entry in entries] == warned_at
    assert all(entry["request"] == "asample" for entry in entries)


def test_requests_fail_independently() -> None:
    """Another request that is answered, or that fails for the first time, changes nothing."""
    now = 0.0
    retries = SlowRetries(after=5, interval=60, clock=lambda: now)

    async def send_all() -> None:
        nonlocal now
        steps = [asyncio.Event() for _ in range(3)]

        async def failing() -> None:
            retries.add("http://localhost", "optim_step", 503)
            steps[0].set()
            await steps[1].wait()
            retries.add("http://localhost", "optim_step", 503)

        task = asyncio.create_task(failing())
        await steps[0].wait()
        now = 6.0
        retries.add("http://localhost", "asample", 200)
        retries.add("http://localhost", "asample", 503)
        steps[1].set()
        await task

    with capture_logs() as entries:
        asyncio.run(send_all())
    assert [entry["request"] for entry in entries] == ["optim_step"]

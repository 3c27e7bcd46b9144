"""Warnings about requests that the SDK repeats because the server fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

import structlog

from kitchen.secrets import mask

log = structlog.get_logger("kitchen.tinker")
SERVER_FAULTS = range(500, 600)


class SlowRetries:
    """Reports a request that has failed for a while; the SDK repeats it for up to five minutes.

    The SDK makes all attempts of a request in one task. A task is reported once, and a server at
    most once in `interval` seconds.
    """

    def __init__(
        self,
        after: float = 5.0,  # seconds of failures before the warning
        interval: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._after = after
        self._interval = interval
        self._clock = clock
        # the time of the first failure since the last success, by task
        self._failing = WeakKeyDictionary[asyncio.Task[object], float]()
        self._reported: dict[str, float] = {}  # the time of the last warning, by server

    def add(self, server: str, path: str, status: int) -> None:
        """Add a response to a request of the current task."""
        task = asyncio.current_task()
        if task is None:
            return
        if status not in SERVER_FAULTS:
            self._failing.pop(task, None)
            return
        now = self._clock()
        lasted = now - self._failing.setdefault(task, now)
        last = self._reported.get(server)
        if lasted >= self._after and (last is None or now - last >= self._interval):
            self._reported[server] = now
            log.warning(
                "the server fails; its log has the reason; the request is repeated for up to five "
                "minutes",
                server=mask(server),
                request=path,
                status=status,
                seconds=round(lasted, 1),
            )

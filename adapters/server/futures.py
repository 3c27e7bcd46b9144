"""Results that clients fetch later, and requests that run in order of their numbers."""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from adapters.server.error_texts import error_text
from adapters.server.limits import Limits
from kitchen.errors import BackendError, ConfigError, DataError, KitchenError, RunFailed

log = structlog.get_logger("kitchen.serve")
USER_ERRORS = (ConfigError, DataError, RunFailed, BackendError)  # the client can fix these


@dataclass(frozen=True)
class Result:
    """The result of a request: JSON, or a protobuf message of the API for some requests."""

    json: Mapping[str, Any] | None = None
    message: bytes = b""


class Gone(Exception):
    """A request, model or session that has ended, or that this server never had."""


class QueueFull(Exception):
    """A session has too many requests that are pending or whose results it has not fetched."""


@dataclass
class StoredFuture:
    """A request in progress, or its result."""

    task: asyncio.Task[Result]
    session: str  # the future is dropped when this session ends
    queue: str  # what it counts towards: one model's requests, or a session's sampling requests
    size: int  # bytes of the request
    expires_at: float = math.inf  # seconds on the store's clock
    fetched: bool = False


class FutureStore:
    """The results of requests by id; a request that arrives twice runs once."""

    def __init__(
        self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._futures: dict[str, StoredFuture] = {}
        self._unfetched: Counter[str] = Counter()  # results, by queue
        self._pending_bytes: Counter[str] = Counter()  # by queue
        self._stopping: asyncio.Future[None] | None = None  # resolved when the server stops
        self.polls = 0  # clients that wait for a result

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._futures

    def __len__(self) -> int:
        return len(self._futures)

    def check_room(self, queue: str) -> None:
        """Raise QueueFull if the queue accepts no further request."""
        if self._unfetched[queue] >= self._limits.unfetched_results:
            raise QueueFull(
                f"the session has {self._limits.unfetched_results} requests of this kind whose "
                "results it has not fetched; fetch them, or try again later"
            )
        if self._pending_bytes[queue] >= self._limits.pending_bytes:
            raise QueueFull(
                f"requests of {self._limits.pending_bytes >> 20} MiB of this session are pending; "
                "try again later"
            )

    def add(
        self, request_id: str, session: str, work: Awaitable[Result], *, queue: str, size: int = 0
    ) -> None:
        """Store a request that the caller has started."""
        task = asyncio.ensure_future(_with_errors(request_id, work))
        future = StoredFuture(task, session, queue, size)
        self._futures[request_id] = future
        self._unfetched[queue] += 1
        self._pending_bytes[queue] += size
        task.add_done_callback(lambda _: self._on_done(future))

    def _on_done(self, future: StoredFuture) -> None:
        _subtract(self._pending_bytes, future.queue, future.size)
        unclaimed_until = self._clock() + self._limits.unclaimed_result_ttl
        future.expires_at = min(future.expires_at, unclaimed_until)

    async def fetch(self, request_id: str, timeout: float) -> Result | None:
        """Return the result, or None if it takes longer than `timeout` seconds; raises Gone."""
        if request_id not in self._futures:
            raise Gone(
                f"there is no request {request_id!r}; its result may have been fetched and dropped"
            )
        future = self._futures[request_id]
        waiting: set[asyncio.Future[Any]] = {future.task, self.stop_signal()}
        self.polls += 1
        try:
            await asyncio.wait(waiting, timeout=timeout, return_when=FIRST_COMPLETED)
        finally:
            self.polls -= 1
        if not future.task.done():
            return None
        if future.task.cancelled() or request_id not in self._futures:
            raise Gone(f"the session of the request {request_id!r} has ended")
        _subtract(self._unfetched, future.queue, not future.fetched)
        future.fetched = True
        future.expires_at = self._clock() + self._limits.fetched_result_ttl
        return future.task.result()

    def stop_waiting(self) -> None:
        """Answer all clients that wait for a result, now and from now on: they try again later."""
        signal = self.stop_signal()
        if not signal.done():
            signal.set_result(None)

    def stop_signal(self) -> asyncio.Future[None]:
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_future()
        return self._stopping

    def sweep(self) -> None:
        """Drop results that were fetched a while ago, or that nobody fetched."""
        now = self._clock()
        self._drop([key for key, future in self._futures.items() if future.expires_at < now])

    def cancel(self, request_id: str) -> None:
        """Cancel and drop a request; one that is not known, or has a result, stays as it is."""
        future = self._futures.get(request_id)
        if future is not None and not future.task.done():
            future.task.cancel()
            self._drop([request_id])

    def end_session(self, session: str) -> None:
        """Cancel and drop all requests of a session."""
        request_ids = [key for key, future in self._futures.items() if future.session == session]
        for request_id in request_ids:
            self._futures[request_id].task.cancel()
        self._drop(request_ids)

    def _drop(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            future = self._futures.pop(request_id)
            _subtract(self._unfetched, future.queue, not future.fetched)


def _subtract(counter: Counter[str], queue: str, amount: int) -> None:
    """Subtract, and drop the entry of an empty queue."""
    counter[queue] -= amount
    if not counter[queue]:
        del counter[queue]


async def _with_errors(request_id: str, work: Awaitable[Result]) -> Result:
    try:
        return await work
    except Exception as error:  # noqa: BLE001 it is the result
        return error_result(error, request_id)


def error_result(error: Exception, request_id: str = "") -> Result:
    """Return an error as a result.

    Its category tells whether the client or the server has to act; its text names the error class
    before the message, so that our client can raise the same one.
    """
    if not isinstance(error, KitchenError):
        log.error("a request failed", request=request_id, exc_info=error)
    is_user_error = isinstance(error, USER_ERRORS)
    return Result(
        {
            "error": error_text(error),
            "category": "user" if is_user_error else "server",
        }
    )


@dataclass
class RequestOrder:
    """Starts requests in the order of their numbers, from 1 on, however they arrive."""

    next_number: int = 1
    early: dict[int, Callable[[], None]] = field(default_factory=dict)  # wait for those before them

    def submit(self, number: int, begin: Callable[[], None]) -> None:
        """Call `begin` after those of earlier requests; raises Gone for a number in the past."""
        if number < self.next_number:
            raise Gone(f"request {number} comes too late: number {self.next_number} is next")
        self.early[number] = begin
        while self.next_number in self.early:
            self.next_number += 1
            self.early.pop(self.next_number - 1)()

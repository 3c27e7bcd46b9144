"""A scheduler that shares a few open samplers fairly among clients."""

from __future__ import annotations

import asyncio
import bisect
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from adapters.server.limits import Limits
from kitchen.errors import ConfigError, DataError
from kitchen.ports.future import Failed
from kitchen.ports.sampling import Sampler
from kitchen.types import Checkpoint

Weights = str | Checkpoint


@dataclass
class QueuedRequest:
    """A sampling request that waits for its turn."""

    session: str  # the sampling session
    number: int  # its position among the session's requests
    rows: int  # completions
    send: Callable[[Sampler], Awaitable[Any]]
    started: asyncio.Future[Awaitable[Any]]  # resolved with the pending result at its turn


@dataclass
class SamplerQueue:
    """The requests for one set of weights, and their sampler while it is open.

    Requests are grouped by client, then by sampling session; in both, the least recently served
    comes first.
    """

    weights: Weights
    sampler: Sampler | None = None
    busy: int = 0  # requests being answered
    broken: bool = False  # a request failed, and not because of its input
    last_used: float = 0.0  # seconds on the scheduler's clock
    ready: bool = False  # the requests have waited for others to join them
    waiting: OrderedDict[str, OrderedDict[str, list[QueuedRequest]]] = field(
        default_factory=OrderedDict
    )

    def add(self, client: str, request: QueuedRequest) -> None:
        sessions = self.waiting.setdefault(client, OrderedDict())
        requests = sessions.setdefault(request.session, [])
        bisect.insort(requests, request, key=lambda queued: queued.number)

    def next_batch(self, max_rows: int) -> list[QueuedRequest]:
        """Take the next requests: one of each client in turn, each session's in order of number."""
        batch: list[QueuedRequest] = []
        while self.waiting and sum(request.rows for request in batch) < max_rows:
            client, sessions = next(iter(self.waiting.items()))
            session, requests = next(iter(sessions.items()))
            batch.append(requests.pop(0))
            sessions.move_to_end(session)
            self.waiting.move_to_end(client)
            self._drop_empty(client, session)
        return batch

    def prune(self) -> None:
        """Drop requests that nobody waits for any more."""
        for client, sessions in list(self.waiting.items()):
            for session, requests in list(sessions.items()):
                requests[:] = [request for request in requests if not request.started.done()]
                self._drop_empty(client, session)

    def _drop_empty(self, client: str, session: str) -> None:
        if not self.waiting[client][session]:
            del self.waiting[client][session]
        if not self.waiting[client]:
            del self.waiting[client]

    def close(self) -> None:
        if self.sampler is not None:
            self.sampler.close()
        self.sampler = None
        self.broken = False


class SamplerScheduler:
    """Runs one batch at a time on each sampler, and opens and closes samplers as needed.

    When the limit of open samplers is reached, the weights that have waited longest are next.
    """

    def __init__(
        self,
        open_sampler: Callable[[Weights], Sampler],
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_sampler = open_sampler
        self._limits = limits or Limits()
        self._clock = clock
        # by weights; the most recently served last
        self._queues: OrderedDict[str, SamplerQueue] = OrderedDict()

    @property
    def open_weights(self) -> list[str]:
        """The weights whose sampler is in memory."""
        return [key for key, queue in self._queues.items() if queue.sampler is not None]

    def submit(self, weights: Weights, client: str, request: QueuedRequest) -> None:
        key = weights if isinstance(weights, str) else weights.path
        queue = self._queues.setdefault(key, SamplerQueue(weights))
        if not queue.waiting:
            delay = self._limits.gather_delay
            asyncio.get_running_loop().call_later(delay, self._mark_ready, queue)
        queue.add(client, request)

    def close_samplers(self, prefix: str) -> None:
        """Close samplers of weights that start with the prefix, which are about to be deleted."""
        for key in [key for key in self._queues if key.startswith(prefix)]:
            self._queues.pop(key).close()

    def sweep(self) -> None:
        """Close samplers that have been idle for too long."""
        for queue in self._queues.values():
            idle = self._clock() - queue.last_used
            is_unused = not queue.busy and not queue.waiting
            if is_unused and idle > self._limits.idle_sampler_timeout:
                queue.close()
        self._drop_unused()

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()

    def _mark_ready(self, queue: SamplerQueue) -> None:
        queue.ready = True
        self._schedule()

    def _schedule(self) -> None:
        for key, queue in list(self._queues.items()):
            queue.prune()
            is_runnable = queue.waiting and queue.ready and not queue.busy
            if is_runnable and (queue.sampler is not None or self._make_room(queue)):
                self._run(queue)
                self._queues.move_to_end(key)
        self._drop_unused()

    def _make_room(self, queue: SamplerQueue) -> bool:
        """Return whether a sampler may be opened, after closing an idle one if necessary."""
        others = [
            other
            for other in self._queues.values()
            if other.sampler is not None and other is not queue
        ]
        if len(others) < self._limits.open_samplers:
            return True
        idle = sorted(
            (other for other in others if not other.busy),
            key=lambda other: (bool(other.waiting), other.last_used),
        )
        if idle:
            idle[0].close()
        return bool(idle)

    def _run(self, queue: SamplerQueue) -> None:
        """Submit a whole batch before waiting for any of it, and the next if all were rejected."""
        while queue.waiting and not queue.busy:
            for request in queue.next_batch(self._limits.batch_rows):
                request.started.set_result(self._start(queue, request))
        queue.ready = bool(queue.waiting)

    def _start(self, queue: SamplerQueue, request: QueuedRequest) -> Awaitable[Any]:
        try:
            queue.sampler = queue.sampler or self._open_sampler(queue.weights)
            work = request.send(queue.sampler)
        except Exception as error:  # noqa: BLE001 it is the result
            return Failed(error)
        queue.busy += 1
        result = asyncio.ensure_future(work)
        result.add_done_callback(lambda done: self._on_done(queue, done))
        return result

    def _on_done(self, queue: SamplerQueue, result: asyncio.Future[Any]) -> None:
        queue.busy -= 1
        queue.last_used = self._clock()
        error = None if result.cancelled() else result.exception()
        if error is not None and not isinstance(error, DataError | ConfigError):
            queue.broken = True
        if not queue.busy:
            if queue.broken:
                queue.close()  # the next request reopens it
            asyncio.get_running_loop().call_soon(self._schedule)

    def _drop_unused(self) -> None:
        unused = [
            key
            for key, queue in self._queues.items()
            if queue.sampler is None and not queue.waiting and not queue.busy
        ]
        for key in unused:
            del self._queues[key]

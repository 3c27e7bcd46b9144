"""A sampler over several servers with the same weights, which shares requests by load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import structlog

from adapters.tinker.futures import ConcurrentFuture, new_future, set_error, set_result
from adapters.tinker.http_client import Unreachable
from adapters.tinker.service import Service
from kitchen.backend.hedging.forwarding import ForwardingSampler
from kitchen.backend.hedging.hedged import Hedging
from kitchen.backend.hedging.race import Cancellable
from kitchen.errors import RunFailed, SessionLost
from kitchen.ports.future import Failed, Future, Pending
from kitchen.ports.sampling import Sampler
from kitchen.secrets import mask

T = TypeVar("T")
log = structlog.get_logger("kitchen.tinker")
RETRY_INTERVAL = 30.0  # seconds until a server that was away is tried again


@dataclass
class Replica:
    """One of several servers with the same weights, shared by all samplers of a client."""

    service: Service
    pending: int = 0  # requests that it is answering
    away_until: float = 0.0  # on the monotonic clock; it gets no requests before

    @property
    def is_away(self) -> bool:
        return self.away_until > time.monotonic()

    def set_aside(self, why: BaseException) -> None:
        """Send no requests to this server for a while."""
        if not self.is_away:
            log.warning(
                "a server is away; its requests are sent to the others",
                server=mask(self.service.address),
                why=str(why),
            )
        self.away_until = time.monotonic() + RETRY_INTERVAL


@dataclass
class Copy:
    """The sampler of some weights on one of the servers, opened when it is needed."""

    replica: Replica
    open: Callable[[], Sampler]
    sampler: Sampler | None = None

    def close(self) -> None:
        if self.sampler is not None:
            self.sampler.close()
        self.sampler = None


@dataclass(eq=False)
class _Request(Generic[T]):
    """A request, which is sent again if its server is lost."""

    send: Callable[[Sampler], Future[T]]
    future: ConcurrentFuture[T]
    copy: Copy | None = None  # that has it
    answer: Future[T] | None = None
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        if isinstance(self.answer, Cancellable):
            self.answer.cancel()


class ReplicatedSampler(ForwardingSampler):
    """Sends each request to the server with the fewest pending ones, and again if that is lost.

    Requests have seeds, so that another server gives the same answer. An answer that is an error,
    or cannot be used, is not hidden by asking another server. With `hedging`, another server is
    asked as well if the answer is late.
    """

    def __init__(
        self, copies: Sequence[Copy], hedging: Hedging | None = None, model: str = ""
    ) -> None:
        """`copies` has the server that trains first, which is spared where others are as idle.

        Latencies are learnt for each `model`.
        """
        self._model = model
        self._copies = copies[::-1]
        self._hedging = hedging
        self._lock = threading.RLock()
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for copy in self._copies:
                copy.close()
        if self._hedging is not None:
            self._hedging.report()

    def _submit(self, bucket: Hashable, request: Callable[[Sampler], Future[T]]) -> Future[T]:
        if self._closed:
            return Failed(RunFailed("the sampler is closed"))
        first = _Request(request, new_future())
        if self._hedging is None:
            return self._start(first, self._copies)

        def send_extra() -> Future[T] | None:
            others = self._others(first)
            return self._start(_Request(request, new_future()), others) if others else None

        of_model = (self._model, bucket)
        return self._hedging.submit(of_model, lambda: self._start(first, self._copies), send_extra)

    def _others(self, first: _Request[T]) -> Sequence[Copy]:
        """Return the servers that could answer a late request, too, and have room for it."""
        if self._closed:
            return []
        return [
            copy
            for copy in self._copies
            if copy is not first.copy
            and not copy.replica.is_away
            and not copy.replica.service.holds_back
        ]

    def _start(self, request: _Request[T], copies: Sequence[Copy]) -> Future[T]:
        self._send(request, copies)
        return Cancellable(request.future, request.cancel)

    def _send(self, request: _Request[T], untried: Sequence[Copy]) -> None:
        with self._lock:
            copy = min(untried, key=lambda copy: (copy.replica.is_away, copy.replica.pending))
            sampler = copy.sampler = copy.sampler or copy.open()
            copy.replica.pending += 1
        request.copy = copy
        others = [other for other in untried if other is not copy]
        try:
            request.answer = answer = request.send(sampler)
        except BaseException:
            with self._lock:
                copy.replica.pending -= 1
            raise
        if isinstance(answer, Failed):  # refused before it was sent
            sent: ConcurrentFuture[T] = new_future()
            set_error(sent, answer.error)
        else:
            assert isinstance(answer, Pending)
            sent = answer.work
        sent.add_done_callback(partial(self._on_done, request, copy, sampler, others))

    def _on_done(
        self,
        request: _Request[T],
        copy: Copy,
        sampler: Sampler,
        others: Sequence[Copy],
        answer: ConcurrentFuture[T],
    ) -> None:
        error = answer.exception()
        with self._lock:
            copy.replica.pending -= 1
            is_away = isinstance(error, SessionLost | Unreachable)
            # another request found that the server is away, and closed the sampler
            is_closed = copy.sampler is not sampler and isinstance(error, RunFailed)
            if error is not None and is_away and copy.sampler is sampler:
                copy.replica.set_aside(error)
                copy.close()
            is_wanted = not self._closed and not request.is_cancelled
            sends_again = (is_away or is_closed) and others and is_wanted
        if sends_again:
            try:
                self._send(request, others)
            except BaseException as failure:  # noqa: BLE001 it surfaces on the future
                set_error(request.future, failure)
        elif error is not None:
            set_error(request.future, error)
        else:
            set_result(request.future, answer.result())

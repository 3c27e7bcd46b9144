"""One request and its extra one, of which the first answer counts."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from kitchen.backend.hedging.clock import Clock
from kitchen.backend.hedging.latencies import Latencies
from kitchen.backend.port_call import current_call
from kitchen.errors import RunFailed
from kitchen.ports.future import Done, Failed, Future, Pending
from kitchen.secrets import mask

T = TypeVar("T")
log = structlog.get_logger("kitchen.hedging")
Send = Callable[[], Future[T]]
SendExtra = Callable[[], Future[T] | None]  # None if it cannot be sent now


@dataclass(frozen=True)
class Cancellable(Pending[T]):
    """A pending future whose work can be stopped; what it gives after that is not defined."""

    on_cancel: Callable[[], object]

    def cancel(self) -> None:
        self.on_cancel()


@dataclass(eq=False)
class _Attempt(Generic[T]):
    """One of the two requests."""

    is_extra: bool
    sent_at: float
    future: Future[T] | None = None  # None while it is being sent
    error: BaseException | None = None
    is_over: bool = False  # answered, failed or cancelled

    @property
    def was_sent(self) -> bool:
        """False if no server was asked; a future without `was_sent` stands for a request."""
        return self.future is not None and getattr(self.future, "was_sent", True)


class Race(Generic[T]):
    """Sends a request, and an extra one once `extend` is called; the first answer wins.

    An error of the only request is the error of the race. With two, an error waits for the other
    request, and if both fail, the error is that of the first. The loser is cancelled if its future
    has `cancel`; otherwise its latency counts when it arrives.

    A future may have `was_sent`, which is False if its answer was kept from earlier: what it took
    is no latency of a server.
    """

    def __init__(
        self, clock: Clock, latencies: Latencies, on_end: Callable[[bool], object]
    ) -> None:
        """`on_end` is called when the race is over: whether the extra request has won."""
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.future.set_running_or_notify_cancel()
        self._clock = clock
        self._latencies = latencies
        self._on_end = on_end
        self._lock = threading.RLock()
        self._attempts: list[_Attempt[T]] = []
        self._is_over = False
        self._call = current_call()
        self._context = contextvars.copy_context()

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def was_sent(self) -> bool:
        """True if a server was asked, by any of the requests."""
        return any(attempt.was_sent for attempt in self._attempts)

    @property
    def has_extra(self) -> bool:
        return any(attempt.is_extra and attempt.future is not None for attempt in self._attempts)

    def start(self, send: Send[T]) -> None:
        """Send the first request."""
        attempt = _Attempt[T](is_extra=False, sent_at=self._clock.now())
        self._attempts.append(attempt)
        self._follow(attempt, _with_callbacks(send()))

    def extend(self, send: SendExtra[T]) -> bool:
        """Send the extra request, in the context of the first; return whether it was sent.

        An error of sending is logged, and the first request goes on alone.
        """
        with self._lock:
            if self._is_over:
                return False
            attempt = _Attempt[T](is_extra=True, sent_at=self._clock.now())
            self._attempts.append(attempt)  # from here on, an error of the first waits for it
        future = self._context.run(_try_to_send, send)
        if future is None:
            self._end_without(attempt)
            return False
        if self._call is not None:
            self._call.hedge = "lost"  # so far
        self._follow(attempt, future)
        return True

    def cancel(self) -> None:
        """Give up both requests, if none was answered."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        for attempt in self._attempts:
            if not attempt.is_over:
                self._cancel(attempt)
        self._fail(RunFailed("the request was cancelled"))

    def _follow(self, attempt: _Attempt[T], future: Future[T]) -> None:
        with self._lock:
            attempt.future = future
            is_late = self._is_over and not attempt.is_over
        if is_late:  # the first has answered while the extra one was being sent
            self._cancel(attempt)
        match future:
            case Done(value):
                self._on_done(attempt, None, value)
            case Failed(error):
                self._on_done(attempt, error, None)
            case Pending(work):
                work.add_done_callback(lambda done: self._on_done(attempt, *_outcome(done)))

    def _on_done(self, attempt: _Attempt[T], error: BaseException | None, value: Any) -> None:
        with self._lock:
            if attempt.is_over:  # cancelled
                return
            attempt.is_over, attempt.error = True, error
            if error is None and attempt.was_sent:
                self._latencies.add(self._clock.now() - attempt.sent_at, answered=True)
            is_waiting = error is not None and not all(each.is_over for each in self._attempts)
            if self._is_over or is_waiting:
                return
            self._is_over = True
            rest = [other for other in self._attempts if not other.is_over]
        for other in rest:
            self._cancel(other)
        if error is None:
            self._win(attempt, value)
        else:
            self._fail(self._attempts[0].error or error)

    def _cancel(self, attempt: _Attempt[T]) -> None:
        """Cancel the request that has lost, if it can be; what it took so far is censored."""
        cancel = getattr(attempt.future, "cancel", None)
        if cancel is None:
            return
        with self._lock:
            attempt.is_over = True
            if attempt.was_sent:
                self._latencies.add(self._clock.now() - attempt.sent_at, answered=False)
        cancel()

    def _win(self, attempt: _Attempt[T], value: T) -> None:
        if self._call is not None and not self.was_sent:
            self._call.hedge = ""
        elif self._call is not None and attempt.is_extra:
            self._call.hedge = "won"
        for other in self._attempts:
            if other.error is not None:
                log.warning(
                    "one of two equal requests failed, and the other was answered",
                    failed="the extra one" if other.is_extra else "the first",
                    why=mask(str(other.error)),
                )
        self._on_end(attempt.is_extra)
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_result(value)

    def _fail(self, error: BaseException) -> None:
        self._on_end(False)
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_exception(error)

    def _end_without(self, attempt: _Attempt[T]) -> None:
        """Go on without the extra request, which could not be sent."""
        with self._lock:
            self._attempts.remove(attempt)
            [first] = self._attempts
            has_failed = first.error is not None and not self._is_over
            self._is_over |= has_failed
        if has_failed and first.error is not None:
            self._fail(first.error)


def _try_to_send(send: SendExtra[T]) -> Future[T] | None:
    """Send an extra request; return None if it cannot be sent now."""
    try:
        future = send()
        return None if future is None else _with_callbacks(future)
    except Exception as error:  # noqa: BLE001 the first request may still be answered
        log.warning("a late request could not be sent again", why=mask(str(error)))
        return None


def _with_callbacks(future: Future[T]) -> Future[T]:
    """Return the future; raises TypeError if nothing can be called when it is done."""
    if isinstance(future, Done | Failed | Pending):
        return future
    raise TypeError(f"{type(future).__name__} has no callbacks, so it cannot be hedged")


def _outcome(done: concurrent.futures.Future[Any]) -> tuple[BaseException | None, Any]:
    if done.cancelled():
        return concurrent.futures.CancelledError(), None
    error = done.exception()
    return error, None if error else done.result()

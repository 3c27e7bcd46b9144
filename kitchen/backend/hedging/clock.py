"""The clock and timers of hedged requests."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

log = structlog.get_logger("kitchen.hedging")
IDLE_SECONDS = 5.0  # that the thread of the timers waits for another one
MAX_WAIT = 3600.0  # seconds at a time, as platforms refuse to wait for some 1e9 s


class Clock(Protocol):
    """A clock with timers; simulations have one of their own."""

    def now(self) -> float:
        """Return the time in seconds since some moment; it never goes back."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        """Call back once, `seconds` from now, and return a function that prevents it."""


@dataclass
class _Timer:
    callback: Callable[[], object] | None

    def cancel(self) -> None:
        self.callback = None  # what it refers to is freed before the timer is due


class RealClock:
    """The monotonic clock; one daemon thread, which runs while there are timers, calls back."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._timers: list[tuple[float, int, _Timer]] = []  # a heap
        self._numbers = itertools.count()  # timers of one moment fire in their order
        self._runs = False

    def now(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        timer = _Timer(callback)
        with self._changed:
            heapq.heappush(self._timers, (self.now() + seconds, next(self._numbers), timer))
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="timers of hedging", daemon=True).start()
            self._changed.notify()
        return timer.cancel

    def _run(self) -> None:
        while (timer := self._next_due()) is not None:
            if (callback := timer.callback) is None:
                continue
            try:
                callback()
            except BaseException as error:  # else no later timer would fire
                log.exception("a timer of hedging failed", why=str(error))
            del callback, timer

    def _next_due(self) -> _Timer | None:
        """Wait for the next timer; None if there has been none for a while, which ends the run."""
        with self._changed:
            while True:
                while self._timers and self._timers[0][2].callback is None:
                    heapq.heappop(self._timers)
                if not self._timers:
                    if not self._changed.wait(IDLE_SECONDS) and not self._timers:
                        self._runs = False
                        return None
                elif (wait := self._timers[0][0] - self.now()) > 0:
                    self._changed.wait(min(wait, MAX_WAIT))
                else:
                    return heapq.heappop(self._timers)[2]

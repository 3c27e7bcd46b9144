"""A clock of simulated time: nothing waits, and events happen in the order of their times."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class _Event:
    callback: Callable[[], object] | None

    def cancel(self) -> None:
        self.callback = None


class EventClock:
    """The `Clock` of hedged requests, for simulations; `run` advances it to the next event."""

    def __init__(self) -> None:
        self._now = 0.0
        self._events: list[tuple[float, int, _Event]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], object]:
        event = _Event(callback)
        heapq.heappush(self._events, (self._now + seconds, next(self._numbers), event))
        return event.cancel

    def run(self) -> None:
        """Run all events in order, with those that they add."""
        while self._events:
            self.step()

    def step(self) -> None:
        """Run the next event."""
        self._now, _, event = heapq.heappop(self._events)
        if event.callback is not None:
            event.callback()

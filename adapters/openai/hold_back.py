"""The pause that a server asks for, kept by all requests with the same address and key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

MAX_PAUSE = 60.0  # seconds, where the server names no time


class HoldBack:
    """A time before which no request goes out; refusals without a time double the pause."""

    def __init__(self, first: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first = first  # seconds of the first pause for which the server names no time
        self._next = first
        self._clock = clock
        self._until = 0.0

    @property
    def seconds(self) -> float:
        """The seconds that are left; 0 if requests may go out."""
        return max(self._until - self._clock(), 0.0)

    async def wait(self) -> float:
        """Wait until requests may go out, and return the seconds that it took.

        A refusal in the meantime makes it longer.
        """
        started = self._clock()
        while (seconds := self.seconds) > 0:
            await asyncio.sleep(seconds)
        return self._clock() - started

    def refuse(self, seconds: float | None) -> None:
        """Hold requests back for as long as the server asks, and at least for the first pause.

        None stands for a server that names no time, and 0 says no more. Requests that were under
        way together are refused together, and lengthen the pause once.
        """
        if not seconds:
            if self.seconds > 0:
                return
            seconds, self._next = self._next, min(self._next * 2, MAX_PAUSE)
        self._until = max(self._until, self._clock() + max(seconds, self._first))

    def accept(self) -> None:
        """Note an answer: the next pause is short again."""
        self._next = self._first

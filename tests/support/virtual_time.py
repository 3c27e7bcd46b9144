"""An event loop whose clock jumps to the next timer, so that sleeping takes no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Adds the time that a loop would wait for its next timer to `now`, in seconds."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("the loop waits, and no timer is set: nothing would ever happen")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs timers in the order of their deadlines, however busy the machine is."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        self._clock.now += 1e-6  # so that timers of one moment run in the order of their creation
        return self._clock.now


async def advance(seconds: float) -> None:
    """Let seconds of virtual time pass: everything due in them has run when it returns."""
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop), "the time is not virtual"
    await asyncio.sleep(seconds)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as asyncio.run does, in virtual time; it may not wait for other threads."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)

"""Micro-batches side by side, each lane with its share of the cores."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from adapters.peft.runtime.threads import Loop, all_cores
from adapters.peft.runtime.worker import owner, pass_on, working_for

T = TypeVar("T")
R = TypeVar("R")
PART = 4  # items that a lane does before others may have their turn


class Lanes:
    """Threads that need not wait for each other between operations, as torch's own do after every
    single one.
    """

    def __init__(self, count: int, threads: int) -> None:
        """`threads`: of torch, those of all lanes together."""
        self.count, self._threads, self._lanes = count, threads, list[Loop]()
        for number in range(count if count > 1 else 0):
            share = max(threads // count + (number < threads % count), 1)
            self._lanes.append(Loop(f"lane {number}", share))
            weakref.finalize(self, self._lanes[-1].jobs.put, None).atexit = False

    def one(self) -> Lanes:
        """All threads for one thing after the other, for what is not made for several."""
        return Lanes(1, self._threads)

    def together(self, work: Callable[[], R]) -> R:
        """All threads for this."""
        return all_cores(self._threads).begin(_for(owner(), work)).result()

    def each(self, work: Callable[[int, T], R], items: Sequence[T]) -> list[R]:
        """`work(lane, item)` of all, in their order; each lane takes every so-many-th, whatever the
        others do.

        An error surfaces once all lanes have ended.
        """
        if self.count == 1 or len(items) == 1:
            return self.together(lambda: [work(0, item) for item in items])

        def go(lane: int) -> list[R]:
            return [work(lane, item) for item in items[lane :: self.count]]

        lanes = [
            lane.begin(_for(owner(), partial(go, number)))
            for number, lane in enumerate(self._lanes[: len(items)])
        ]
        errors = [error for lane in lanes if (error := lane.exception()) is not None]
        if errors:
            raise errors[0]
        done = [lane.result() for lane in lanes]
        return [done[place % self.count][place // self.count] for place in range(len(items))]

    def in_parts(self, work: Callable[[int, T], R], items: Sequence[T], part: int = 0) -> list[R]:
        """The same, `part` items a lane at a time (0: PART); in between, other workers have their
        turn.
        """
        done, most = list[R](), (part or PART) * self.count
        for first in range(0, len(items), most):
            if first:
                pass_on()
            done += self.each(work, items[first : first + most])
        return done


def _for(worker: threading.Thread, work: Callable[[], R]) -> Callable[[], R]:
    """What it does stops when that worker is closed."""

    def go() -> R:
        with working_for(worker):
            return work()

    return go

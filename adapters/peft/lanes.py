"""Micro-batches side by side, each lane with its share of the cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from adapters.peft.worker import working_for

T = TypeVar("T")
R = TypeVar("R")


class Lanes:
    """Threads that need not wait for each other between operations, as torch's own do after every single one."""

    def __init__(self, count: int, threads: int) -> None:
        """`threads`: of torch, those of all lanes together. To be made by the thread that will use it."""
        self.count = count
        if count == 1:
            return
        there = threading.Barrier(count + 1)

        def begin() -> None:
            torch.get_num_threads()  # else its first operation would set the number of all the process again
            torch.set_num_threads(max(threads // count, 1))
            there.wait()

        self._pool = ThreadPoolExecutor(count, "lane", initializer=begin)
        for _ in range(count):
            self._pool.submit(int)
        there.wait()
        torch.set_num_threads(threads)  # of this thread, and of those that begin later

    def each(self, work: Callable[[int, T], R], items: Sequence[T]) -> list[R]:
        """`work(lane, item)` of all, in their order; each lane takes every so-many-th, whatever the others do.

        An error surfaces once all lanes have ended.
        """
        if self.count == 1 or len(items) == 1:
            return [work(0, item) for item in items]
        owner = threading.current_thread()

        def go(lane: int) -> list[R]:
            with working_for(owner):
                return [work(lane, item) for item in items[lane :: self.count]]

        lanes = [self._pool.submit(go, lane) for lane in range(min(self.count, len(items)))]
        errors = [error for lane in lanes if (error := lane.exception()) is not None]
        if errors:
            raise errors[0]
        done = [lane.result() for lane in lanes]
        return [done[place % self.count][place // self.count] for place in range(len(items))]


ONE = Lanes(1, 1)  # for what is not made for several

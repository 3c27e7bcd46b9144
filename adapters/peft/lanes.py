"""Micro-batches side by side, each lane with its share of the cores."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from adapters.peft.worker import pass_on, working_for

T = TypeVar("T")
R = TypeVar("R")
PART = 4  # items that a lane does before others may have their turn


class Lanes:
    """Threads that need not wait for each other between operations, as torch's own do after every single one.

    They are not of concurrent.futures: that takes nothing more on while the process ends, which is when a run saves.
    """

    def __init__(self, count: int, threads: int) -> None:
        """`threads`: of torch, those of all lanes together. To be made by the thread that will use it."""
        self.count = count
        if count == 1:
            return
        there = threading.Barrier(count + 1)
        self._lanes: list[Any] = [queue.SimpleQueue() for _ in range(count)]
        for number, jobs in enumerate(self._lanes):
            share = max(threads // count + (number < threads % count), 1)
            threading.Thread(target=_work, args=(jobs, share, there), name=f"lane {number}", daemon=True).start()
            weakref.finalize(self, jobs.put, None).atexit = False
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

        lanes = [self._begin(lane, go) for lane in range(min(self.count, len(items)))]
        errors = [error for lane in lanes if (error := lane.exception()) is not None]
        if errors:
            raise errors[0]
        done = [lane.result() for lane in lanes]
        return [done[place % self.count][place // self.count] for place in range(len(items))]

    def in_parts(self, work: Callable[[int, T], R], items: Sequence[T]) -> list[R]:
        """The same, a few items a lane at a time; in between, other workers have their turn."""
        done: list[R] = []
        for first in range(0, len(items), PART * self.count):
            if first:
                pass_on()
            done += self.each(work, items[first : first + PART * self.count])
        return done

    def _begin(self, lane: int, go: Callable[[int], list[R]]) -> concurrent.futures.Future[list[R]]:
        future: concurrent.futures.Future[list[R]] = concurrent.futures.Future()
        self._lanes[lane].put((future, lambda: go(lane)))
        return future


def _work(jobs: Any, threads: int, there: threading.Barrier) -> None:
    torch.get_num_threads()  # else its first operation would set the number of all the process again
    torch.set_num_threads(threads)
    there.wait()
    while (job := jobs.get()) is not None:
        future, work = job
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 it surfaces on the future
            future.set_exception(error)
        job = future = work = None  # else what the last job holds would live until the next one comes


ONE = Lanes(1, 1)  # for what is not made for several

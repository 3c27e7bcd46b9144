"""Lanes: threads that compute micro-batches in parallel, each with its share of the cores."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import torch

from adapters.peft.runtime.threads import TaskThread, all_cores_thread
from adapters.peft.runtime.worker import current_worker, working_for, yield_turn

T = TypeVar("T")
R = TypeVar("R")
CHUNK = 4  # items of each lane between turns of other workers


class Lanes:
    """A pool of threads that do not wait for each other between operations.

    torch's intra-op threads wait for each other after every operation.
    """

    def __init__(self, count: int, threads: int, device: torch.device | None = None) -> None:
        """`threads`: torch threads of all lanes together; `device`: where they launch kernels."""
        self.count, self._threads, self._lanes = count, threads, list[TaskThread]()
        self._device = device
        for number in range(count if count > 1 else 0):
            share = max(threads // count + (number < threads % count), 1)
            self._lanes.append(TaskThread(f"lane {number}", share))
            weakref.finalize(self, self._lanes[-1].tasks.put, None).atexit = False

    def single(self) -> Lanes:
        """Return one lane with all threads, for work that cannot be done in parallel."""
        return Lanes(1, self._threads, self._device)

    def run(self, work: Callable[[], R]) -> R:
        """Run one task with all threads."""
        return all_cores_thread(self._threads).submit(self._bind(work)).result()

    def map(self, work: Callable[[int, T], R], items: Sequence[T]) -> list[R]:
        """Return `work(lane, item)` of all items, in their order.

        Lane i takes items i, i + count, i + 2 · count, ..., whatever the timing. An error is raised
        once all lanes have ended.
        """
        if self.count == 1 or len(items) == 1:
            return self.run(lambda: [work(0, item) for item in items])

        def run_lane(lane: int) -> list[R]:
            return [work(lane, item) for item in items[lane :: self.count]]

        futures = [
            thread.submit(self._bind(partial(run_lane, number)))
            for number, thread in enumerate(self._lanes[: len(items)])
        ]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        results = [future.result() for future in futures]
        return [results[at % self.count][at // self.count] for at in range(len(items))]

    def map_in_chunks(
        self, work: Callable[[int, T], R], items: Sequence[T], chunk: int = 0
    ) -> list[R]:
        """Map with `chunk` items of each lane at a time (0: CHUNK).

        Between chunks other workers have their turn.
        """
        results, size = list[R](), (chunk or CHUNK) * self.count
        for first in range(0, len(items), size):
            if first:
                yield_turn()
            results += self.map(work, items[first : first + size])
        return results

    def _bind(self, work: Callable[[], R]) -> Callable[[], R]:
        """Let work compute on this device, and stop when the worker of this thread is closed."""
        worker: threading.Thread = current_worker()
        device = self._device

        def bound() -> R:
            # Triton launches on the current device, which is cuda:0 in a new thread
            is_numbered = device is not None and device.type == "cuda" and device.index is not None
            with working_for(worker), torch.cuda.device(device) if is_numbered else nullcontext():
                return work()

        return bound

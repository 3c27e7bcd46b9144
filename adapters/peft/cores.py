"""Threads of ours, and how many of torch's each of them computes with."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class Loop(threading.Thread):
    """A daemon that does one thing after the other, with so many threads of torch.

    It is not of concurrent.futures: that takes nothing more on while the process ends, which is when a run saves.
    """

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(name=name, daemon=True)
        self.jobs: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None]
        self.jobs, self._threads = queue.SimpleQueue(), threads
        self.start()

    def begin(self, work: Callable[[], T]) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.jobs.put((future, work))
        return future

    def run(self) -> None:
        use_threads(self._threads)
        while (job := self.jobs.get()) is not None:
            _do(*job)
            del job  # else what the last job holds would live until the next one comes


def _do(future: concurrent.futures.Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 it surfaces on the future
        future.set_exception(error)


def all_cores(threads: int) -> Loop:
    """The one loop of this process with so many threads.

    OpenMP's threads belong to the thread that calls them, and sleep between any two operations once there are more of
    them in the process than processors (docs/benchmarks.md): whatever computes with several is to do it there.
    """
    with _MAKING:
        return _loop(os.getpid(), threads)  # a fork begins without


@functools.cache
def _loop(_process: int, threads: int) -> Loop:
    return Loop("all cores", threads)


def use_threads(count: int) -> None:
    """Of torch, in what this thread computes; what others use, and those that begin later, stays as it is."""
    with _SETTING:
        usual = _elsewhere(torch.get_num_threads)
        torch.get_num_threads()  # else the first operation of this thread would set it again
        torch.set_num_threads(count)
        _elsewhere(lambda: torch.set_num_threads(usual))


def _elsewhere(work: Callable[[], T]) -> T:
    """In a thread that is new."""
    found = list[T]()
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


_MAKING, _SETTING = threading.Lock(), threading.Lock()

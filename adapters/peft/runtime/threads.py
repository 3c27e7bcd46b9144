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


class CoreThread(threading.Thread):
    """A daemon that computes with so many threads of torch, from the moment on that `start` comes
    back.
    """

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(name=name, daemon=True)
        self._threads, self._ready = threads, concurrent.futures.Future[None]()

    def start(self) -> None:
        """Raises RuntimeError where the system has no thread more."""
        super().start()
        self._ready.result()

    def run(self) -> None:
        try:
            _use(self._threads)
        except BaseException as error:  # noqa: BLE001 it surfaces where the thread was started
            self._ready.set_exception(error)
        else:
            self._ready.set_result(None)
            self.work()

    def work(self) -> None:
        """For subclasses."""


class Loop(CoreThread):
    """One thing after the other.

    It is not of concurrent.futures: that takes nothing more on while the process ends, which is
    when a run saves.
    """

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(name, threads)
        self.jobs: queue.SimpleQueue[
            tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None
        ]
        self.jobs = queue.SimpleQueue()
        self.start()

    def begin(self, work: Callable[[], T]) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.jobs.put((future, work))
        return future

    def work(self) -> None:
        while (job := self.jobs.get()) is not None:
            do(*job)
            del job  # else what the last job holds would live until the next one comes


def do(future: concurrent.futures.Future[T], work: Callable[[], T]) -> None:
    """Now; its error surfaces on the future too."""
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)


def all_cores(threads: int) -> Loop:
    """The one loop of this process with so many threads.

    OpenMP's threads belong to the thread that calls them, and sleep between any two operations once
    there are more of them in the process than processors (docs/benchmarks.md): whatever computes
    with several is to do it there. (Lanes that have several each, on three cores and more, have
    their own besides.)
    """
    with _MAKING:
        return _loop(os.getpid(), threads)  # a fork begins without


@functools.cache
def _loop(_process: int, threads: int) -> Loop:
    return Loop("all cores", threads)


def usual() -> int:
    """Threads of torch that whatever begins now computes with, unless told."""
    found = list[int]()
    with _SETTING:
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    return found[0]


def _use(count: int) -> None:
    """In what this thread computes; what others use, and those that begin later, stays as it is."""
    known, done = threading.Event(), threading.Event()

    def keep() -> None:
        before = torch.get_num_threads()
        known.set()
        done.wait()
        torch.set_num_threads(before)

    with _SETTING:
        keeper = threading.Thread(target=keep)
        keeper.start()  # before anything is set: where there is no thread more, nothing is
        known.wait()
        try:
            torch.get_num_threads()  # else the first operation of this thread would set it again
            torch.set_num_threads(count)
        finally:
            done.set()
            keeper.join()


_MAKING, _SETTING = threading.Lock(), threading.Lock()

"""Compute threads, each with its own number of torch threads."""

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


class ComputeThread(threading.Thread):
    """A daemon thread that computes with its own number of torch threads once `start` returns."""

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(name=name, daemon=True)
        self._threads, self._ready = threads, concurrent.futures.Future[None]()

    def start(self) -> None:
        """Start the thread; raises RuntimeError if the system allows no more threads."""
        super().start()
        self._ready.result()

    def run(self) -> None:
        try:
            _set_torch_threads(self._threads)
        except BaseException as error:  # noqa: BLE001 it surfaces where the thread was started
            self._ready.set_exception(error)
        else:
            self._ready.set_result(None)
            self.work()

    def work(self) -> None:
        """Run the body of the thread; subclasses override it."""


class TaskThread(ComputeThread):
    """A compute thread that runs submitted tasks one after the other.

    Not an executor of concurrent.futures: that accepts no tasks while the process exits, which is
    when a run saves.
    """

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(name, threads)
        self.tasks: queue.SimpleQueue[
            tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None
        ]
        self.tasks = queue.SimpleQueue()
        self.start()

    def submit(self, task: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Queue a task and return its future."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.tasks.put((future, task))
        return future

    def work(self) -> None:
        while (item := self.tasks.get()) is not None:
            run_into(*item)
            del item  # otherwise the last task and its objects would live until the next one


def run_into(future: concurrent.futures.Future[T], task: Callable[[], T]) -> None:
    """Run a task now; its result or its error goes to the future."""
    try:
        future.set_result(task())
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)


def all_cores_thread(threads: int) -> TaskThread:
    """Return this process's only task thread with `threads` torch threads.

    OpenMP's threads belong to the thread that calls them, and sleep between any two operations once
    the process has more of them than processors (docs/benchmarks.md). Everything that computes with
    several threads therefore runs on this one, except for lanes, each of which has several threads
    on three cores or more.
    """
    with _CREATING:
        return _task_thread(os.getpid(), threads)  # a forked process has none yet


@functools.cache
def _task_thread(_process: int, threads: int) -> TaskThread:
    return TaskThread("all cores", threads)


def default_threads() -> int:
    """Return the number of torch threads with which a new thread computes by default."""
    counts = list[int]()
    with _SETTING:
        thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    return counts[0]


def _set_torch_threads(count: int) -> None:
    """Set the number of torch threads of this thread only.

    torch.set_num_threads also changes the number with which later threads start: another thread
    sets that back.
    """
    known, done = threading.Event(), threading.Event()

    def restore() -> None:
        before = torch.get_num_threads()
        known.set()
        done.wait()
        torch.set_num_threads(before)

    with _SETTING:
        restorer = threading.Thread(target=restore)
        restorer.start()  # before anything is set: if the system allows no thread, nothing changes
        known.wait()
        try:
            # otherwise the first operation of this thread would set the number again
            torch.get_num_threads()
            torch.set_num_threads(count)
        finally:
            done.set()
            restorer.join()


_CREATING, _SETTING = threading.Lock(), threading.Lock()

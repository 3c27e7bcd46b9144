"""A thread that does one thing after the other."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from kitchen.errors import RunFailed

T = TypeVar("T")
Job = tuple["concurrent.futures.Future[Any]", Callable[[], Any]]
Jobs = queue.SimpleQueue[Job | None]
ALONE = threading.Lock()  # held by whoever computes or loads, in all the process: see Worker


class Worker:
    """First in, first out. A daemon, so that a process that was interrupted ends.

    Workers take turns: two at once on the same cores are slower than one after the other, and transformers changes
    settings of torch for the whole process while it opens a model.
    """

    def __init__(self, name: str) -> None:
        self._jobs: Jobs = queue.SimpleQueue()
        self._closed = threading.Event()
        threading.Thread(target=_run, args=(self._jobs, self._closed), name=name, daemon=True).start()
        self._end = weakref.finalize(self, self._jobs.put, None)

    def submit(self, job: Callable[[], T]) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """What is running comes to its end; what was waiting fails."""
        self._closed.set()
        self._end()


def _run(jobs: Jobs, closed: threading.Event) -> None:
    while (job := jobs.get()) is not None:
        if job[0].set_running_or_notify_cancel():
            with ALONE:
                _do(*job, closed)
        job = None  # else the last job, and all that it holds, would live until the next one comes


def _do(future: concurrent.futures.Future[Any], work: Callable[[], Any], closed: threading.Event) -> None:
    try:
        if closed.is_set():
            raise RunFailed("it was closed before this call had its turn")
        value = work()
    except BaseException as error:  # noqa: BLE001 it surfaces on the future
        future.set_exception(error)
    else:
        future.set_result(value)

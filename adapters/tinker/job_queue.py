"""A thread that runs jobs in order, and conversions of the SDK's futures to ours."""

from __future__ import annotations

import contextvars
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from adapters.tinker.errors import translate_error
from adapters.tinker.futures import ConcurrentFuture, set_error, set_result
from adapters.tinker.service import Service

T = TypeVar("T")


class JobQueue(threading.Thread):
    """Runs one job after the other, so that callers need not wait.

    It is a daemon thread, because a server may never answer.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # reentrant, as in Service: garbage collection may close the queue in the same thread
        self._lock = threading.RLock()
        self._closed = False
        self.start()

    def put(self, job: Callable[[], None]) -> bool:
        """Queue a job; return False, and do not run it, if the queue is closed.

        The job runs in the caller's context, so that its logs and spans go to the caller's run.
        """
        context = contextvars.copy_context()
        with self._lock:
            if not self._closed:
                self._jobs.put(lambda: context.run(job))
            return not self._closed

    def close(self) -> None:
        """Accept no more jobs; those already queued still run."""
        with self._lock:
            self._closed = True
        self._jobs.put(None)

    def run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            # otherwise the last job, and all that it references, would live until the next one
            job = None


def run_into(future: ConcurrentFuture[T], job: Callable[[], T], server: str = "the server") -> None:
    """Run the job now; resolve the future with its result, or its error, which names `server`."""
    try:
        set_result(future, job())
    except BaseException as error:  # noqa: BLE001 it surfaces on the future
        set_error(future, translate_error(error, server))


def resolve_from(
    sdk_future: Any,
    convert: Callable[[Any], T],
    future: ConcurrentFuture[T],
    server: str,
    on_answer: Callable[[BaseException | None], BaseException | None] = lambda error: error,
) -> None:
    """Resolve our future with the converted result of the SDK's future once that is done.

    Before that, `on_answer` is called with the error, or None; one that it returns fails a call
    that had none.
    """

    def answer(done: ConcurrentFuture[Any]) -> T:
        try:
            result = convert(done.result())
        except BaseException as error:
            translated = translate_error(error, server)
            on_answer(translated)
            raise translated from error
        if (failure := on_answer(None)) is not None:
            raise failure
        return result

    def on_done(done: ConcurrentFuture[Any]) -> None:
        run_into(future, lambda: answer(done), server)

    sdk_future.future().add_done_callback(on_done)


def hold_service(service: Service, user: Any, jobs: JobQueue) -> Callable[[], Any]:
    """Keep the service open until the returned function is called, or `user` is collected."""

    def release() -> None:
        jobs.close()
        service.leave()

    service.enter()
    finalizer = weakref.finalize(user, release)
    finalizer.atexit = False
    return finalizer

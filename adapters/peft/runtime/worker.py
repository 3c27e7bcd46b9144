"""Workers: threads with a queue that take turns on the cores."""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from adapters.peft.runtime.exhausted_memory import explaining_memory
from adapters.peft.runtime.threads import ComputeThread, run_into
from kitchen.errors import RunFailed

T = TypeVar("T")
Job = tuple["concurrent.futures.Future[Any]", Callable[[], Any], bool]
EXIT_TIMEOUT = 10.0  # seconds that the exit of the process waits for a worker to stop


class FairLock:
    """A lock that goes to the thread that has waited longest, so that no worker starves."""

    def __init__(self) -> None:
        self._lock, self._held = threading.Lock(), False
        self._waiting: collections.deque[threading.Event] = collections.deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._held:
                self._held = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        self._wait_for(turn)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()  # the lock stays held, by the next
            else:
                self._held = False

    def locked(self) -> bool:
        """Return whether a thread holds the lock."""
        return self._held

    def waiting(self) -> int:
        """Return the number of threads that wait for the lock."""
        return len(self._waiting)

    def yield_turn(self) -> None:
        """Release the lock to the threads that wait now, and acquire it again after them.

        The caller joins the queue before the next holder runs, which therefore cannot overtake it.
        """
        with self._lock:
            if not self._waiting:
                return
            turn = threading.Event()
            self._waiting.append(turn)
            self._waiting.popleft().set()
        self._wait_for(turn)

    def _wait_for(self, turn: threading.Event) -> None:
        try:
            turn.wait()
        except BaseException:  # Ctrl-C: leave the queue, or pass on a lock that was handed over
            with self._lock:
                handed_over = turn not in self._waiting
                if not handed_over:
                    self._waiting.remove(turn)
            if handed_over:
                self.__exit__()
            raise


COMPUTE_LOCK = FairLock()  # of the whole process; held while a worker computes or loads
_LOCAL = threading.local()  # `worker`: of a thread that helps a worker, that worker's thread


class Worker:
    """A first-in, first-out queue of jobs with a dedicated thread.

    Workers take turns: two at once on the same cores are slower than one after the other, and
    transformers changes settings of torch for the whole process while it opens a model.
    """

    def __init__(self, name: str) -> None:
        self._thread = _WorkerThread(name)
        self._thread.start()
        weakref.finalize(self, self._thread.jobs.put, None).atexit = False

    def submit(
        self, job: Callable[[], T], *, exclusive: bool = True
    ) -> concurrent.futures.Future[T]:
        """Queue a job.

        `exclusive`: the job holds COMPUTE_LOCK, as all computation must; a job that waits for a
        network must not, because it would block the other workers. A caller that stops waiting for
        the future does not cancel the job: training would continue without that call.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        context = contextvars.copy_context()  # by which a job reports its progress to the caller
        self._thread.jobs.put((future, partial(context.run, job), exclusive))
        return future

    def close(self) -> None:
        """Stop the running job at its next `raise_if_closed`; jobs in the queue fail."""
        self._thread.close()


def raise_if_closed() -> None:
    """Raise RunFailed if the worker of this thread has been closed; long jobs call it often."""
    thread = current_worker()
    if isinstance(thread, _WorkerThread) and thread.closed.is_set():
        raise RunFailed("the session or sampler was closed while this call was running")


def nested_call_error() -> RunFailed | None:
    """Return the error of a call from within a worker's job, which would wait for its own turn."""
    if not isinstance(current_worker(), _WorkerThread):
        return None
    return RunFailed(
        "a loss function cannot call a local session or sampler while it runs: only one of them "
        "computes at a time, and this one would wait for itself; compute those values before the "
        "step, and put them into loss_inputs"
    )


def yield_turn() -> None:
    """Let waiting workers compute first; long jobs call it where they can pause."""
    if isinstance(threading.current_thread(), _WorkerThread):
        COMPUTE_LOCK.yield_turn()


def current_worker() -> threading.Thread:
    """Return the worker that this thread works for, or else this thread."""
    worker: threading.Thread = getattr(_LOCAL, "worker", threading.current_thread())
    return worker


@contextmanager
def working_for(worker: threading.Thread) -> Iterator[None]:
    """Let this thread work for a worker within a block: it stops when that worker is closed."""
    _LOCAL.worker = worker
    try:
        yield
    finally:
        del _LOCAL.worker


class _WorkerThread(ComputeThread):
    """A daemon with one torch thread; the heavy work is done by lanes.

    As a daemon it lets an interrupted process end. It is stopped and joined at exit, because a
    process that ends while torch computes would crash.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, threads=1)
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.closed = threading.Event()

    def start(self) -> None:
        super().start()
        atexit.register(self._close_and_join)

    def work(self) -> None:
        while (job := self.jobs.get()) is not None:
            future, function, exclusive = job
            with COMPUTE_LOCK if exclusive else nullcontext():
                run_into(future, partial(self._unless_closed, function))
            # otherwise the last job, and all that it references, would live until the next one
            del job, future, function
        atexit.unregister(self._close_and_join)

    def close(self) -> None:
        self.closed.set()
        self.jobs.put(None)

    def _close_and_join(self) -> None:
        self.close()
        self.join(EXIT_TIMEOUT)

    def _unless_closed(self, function: Callable[[], T]) -> T:
        if self.closed.is_set():
            raise RunFailed("the session or sampler was closed before this call had its turn")
        with explaining_memory(self.name):
            return function()

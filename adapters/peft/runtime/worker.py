"""A thread that does one thing after the other."""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from adapters.peft.runtime.threads import CoreThread, do
from kitchen.errors import RunFailed

T = TypeVar("T")
Job = tuple["concurrent.futures.Future[Any]", Callable[[], Any], bool]
PATIENCE = 10.0  # seconds that the end of the process waits for a worker to stop


class Turns:
    """A lock that whoever waits longest gets next: no worker waits for all that another has to do."""

    def __init__(self) -> None:
        self._lock, self._held = threading.Lock(), False
        self._waiting: collections.deque[threading.Event] = collections.deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._held:
                self._held = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        try:
            mine.wait()
        except BaseException:  # Ctrl-C; nobody else would be let in by whoever does not come in
            with self._lock:
                came = mine not in self._waiting
                if not came:
                    self._waiting.remove(mine)
            if came:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()  # it is held on, by the next
            else:
                self._held = False

    def pass_on(self) -> None:
        """Whoever has it lets those go first who wait for it now."""
        if self._waiting:
            self.__exit__()
            self.__enter__()


ALONE = Turns()  # of whoever computes or loads, in all the process: see Worker
_OWNER = threading.local()  # of a thread that helps a worker, that worker's


class Worker:
    """First in, first out.

    Workers take turns: two at once on the same cores are slower than one after the other, and
    transformers changes settings of torch for the whole process while it opens a model.
    """

    def __init__(self, name: str) -> None:
        self._thread = _Thread(name)
        self._thread.start()
        weakref.finalize(self, self._thread.jobs.put, None).atexit = False

    def submit(self, job: Callable[[], T], *, alone: bool = True) -> concurrent.futures.Future[T]:
        """`alone`: it has its turn, as all that computes must; what waits for a network would hold
        up the others.

        Whoever stops waiting for it does not stop it: a queue that has lost one call would train on
        without it.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        self._thread.jobs.put((future, job, alone))
        return future

    def close(self) -> None:
        """What is running stops at its next `stop_if_closed`; what was waiting fails."""
        self._thread.close()


def stop_if_closed() -> None:
    """For the work of a worker to call now and then; raises RunFailed if the worker has been
    closed.
    """
    thread = owner()
    if isinstance(thread, _Thread) and thread.closed.is_set():
        raise RunFailed("it was closed while this call was running")


def no_turn_in_a_turn() -> RunFailed | None:
    """What is wrong with asking in the work of a worker: to wait there for another's turn is to
    wait for ever.
    """
    if not isinstance(owner(), _Thread):
        return None
    return RunFailed(
        "while a loss is computed it cannot ask a local session or sampler for anything: they take "
        "turns, "
        "and this one is its own; ask before the step, wait, and put the answers into loss_inputs"
    )


def pass_on() -> None:
    """For the work of a worker that takes long, to call where it can pause: others have their turn,
    if any wait.
    """
    if isinstance(threading.current_thread(), _Thread):
        ALONE.pass_on()


def owner() -> threading.Thread:
    """Whom this thread works for: a worker, or else itself."""
    found: threading.Thread = getattr(_OWNER, "thread", threading.current_thread())
    return found


@contextmanager
def working_for(worker: threading.Thread) -> Iterator[None]:
    """What this thread does in here stops when that worker is closed."""
    _OWNER.thread = worker
    try:
        yield
    finally:
        del _OWNER.thread


class _Thread(CoreThread):
    """A daemon, so that an interrupted process ends; one that torch is busy in at that moment would
    be a crash.

    It computes with one thread of torch: what takes long is for lanes.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, threads=1)
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.closed = threading.Event()

    def start(self) -> None:
        super().start()
        atexit.register(self._leave)

    def work(self) -> None:
        while (job := self.jobs.get()) is not None:
            with ALONE if job[2] else nullcontext():
                do(job[0], partial(self._unless_closed, job[1]))
            # else the last job, and all that it holds, would live until the next one comes
            job = None
        atexit.unregister(self._leave)

    def close(self) -> None:
        self.closed.set()
        self.jobs.put(None)

    def _leave(self) -> None:
        self.close()
        self.join(PATIENCE)

    def _unless_closed(self, work: Callable[[], T]) -> T:
        if self.closed.is_set():
            raise RunFailed("it was closed before this call had its turn")
        return work()

"""The devices of a run: device 0 is this process, the others are processes that it starts."""

from __future__ import annotations

import collections
import concurrent.futures
import contextvars
import copy
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from adapters.peft.runtime.devices.all_reduce import AllReduce
from adapters.peft.runtime.devices.peer import RESUME, Handler, Peer
from adapters.peft.runtime.devices.peers import Aborted, LostPeer
from adapters.peft.runtime.devices.process import Start
from adapters.peft.runtime.threads import TaskThread
from adapters.peft.runtime.worker import current_worker, working_for
from kitchen.errors import SessionLost

T = TypeVar("T")
R = TypeVar("R")
LAST_WORDS = 10.0  # seconds that a call waits for its own part once a device is gone
STEP_PATIENCE = 2.0  # seconds that a step waits for the other devices once one has failed
Outcome = concurrent.futures.Future[Any]


class DeviceGroup:
    """Several devices that compute one call together; to a trainer, they are its `Peers`.

    A call that fails on one device fails on all. If a process ends, the others are ended too, and
    every later call raises SessionLost.
    """

    rank = 0

    def __init__(
        self,
        devices: Sequence[str],
        setup: Callable[..., object],
        arguments: Callable[[int], tuple[Any, ...]],
        handlers: Mapping[str, Handler],
    ) -> None:
        """Start the processes; they call `setup(worker, *arguments(rank))`.

        `handlers`: functions of this process that the others may call by name.
        """
        self.count = len(devices)
        self._folder = tempfile.TemporaryDirectory(prefix="kitchen-devices-")
        store = str(Path(self._folder.name) / "store")
        self._reduce = AllReduce(0, self.count, store)
        self._lost = concurrent.futures.Future[Any]()
        self._handlers, self._number = dict(handlers), 0
        self._forgotten = collections.deque[str]()
        self._thread, self._lock = TaskThread("device 0", 1), threading.Lock()
        self._peers = [
            Peer(devices[rank], Start(rank, self.count, store, setup, arguments(rank)), self._lost)
            for rank in range(1, self.count)
        ]
        for peer in self._peers:
            peer.begin(0, self._handlers)
        weakref.finalize(self, _end, self._peers, self._thread, self._folder).atexit = False

    @property
    def processes(self) -> list[int]:
        """The process ids of the other devices, in the order of their ranks."""
        return [peer.process for peer in self._peers]

    @property
    def is_lost(self) -> bool:
        """True once a process has ended: the group accepts no more calls."""
        return self._lost.done()

    def run(
        self,
        function: Callable[..., Any],
        arguments: Callable[[int], tuple[Any, ...]],
        own: Callable[[], T],
        handlers: Mapping[str, Handler] | None = None,
        *,
        is_step: bool = False,
    ) -> tuple[T, list[Any]]:
        """Run `own()` here and `function(worker, *arguments(rank))` on all other devices.

        Returns the results of both. `function` belongs to a module. `is_step`: it sums tensors, and
        a device that waits for a sum does not notice that another failed; it is ended. Raises the
        error of the device that failed, or SessionLost if its process ended.
        """
        with self._lock:
            self._raise_if_lost()
            self._number += 1
            outcomes = [
                peer.begin(self._number, {**self._handlers, **(handlers or {})})
                for peer in self._peers
            ]
            forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
            try:
                for peer in self._peers:
                    peer.send("run", (function, arguments(peer.rank), forgotten))
                here = self._thread.submit(_bound(own))
                self._wait([here, *outcomes], STEP_PATIENCE if is_step else None)
                return here.result(), [outcome.result() for outcome in outcomes]
            finally:
                for peer in self._peers:
                    peer.finish()

    def gather(self, items: Sequence[R]) -> list[R]:
        everything = list(items)
        for peer in self._peers:
            everything += peer.next_items()
        for peer in self._peers:
            peer.send("gathered", everything)
        return everything

    def all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        self._reduce(tensors)

    def forget(self, name: str) -> None:
        """Let the other devices drop an object before the next call."""
        self._forgotten.append(name)

    def close(self) -> None:
        """End the processes of the other devices."""
        for peer in self._peers:
            peer.end()

    def _wait(self, outcomes: Sequence[Outcome], patience: float | None) -> None:
        """Wait until all devices are done; raises the error of the one that failed.

        `patience`: seconds until the others are ended once one has failed; None: they are not.
        """
        pending, limit, is_aborted = set(outcomes), None, False
        while pending:
            done, pending = concurrent.futures.wait(
                {*pending, self._lost}, limit, concurrent.futures.FIRST_COMPLETED
            )
            if self._lost in done:
                self._give_up(outcomes[0])
            pending.discard(self._lost)
            if not done:
                break
            if not is_aborted and any(outcome.exception() for outcome in done):
                limit, is_aborted = patience, True
                for peer in self._peers:
                    peer.send("abort", None)
        self._raise_error(outcomes, is_stuck=bool(pending))

    def _raise_error(self, outcomes: Sequence[Outcome], *, is_stuck: bool) -> None:
        """Raise the error of a device that failed, if one did.

        An error that another device caused counts only if there is no other. Of several, that of
        the lowest rank is raised. The group is lost if a device is stuck, or could not be reached.
        """
        errors = {
            rank: error
            for rank, outcome in enumerate(outcomes)
            if outcome.done() and (error := outcome.exception()) is not None
        }
        first_hand = [
            rank for rank, error in errors.items() if not isinstance(error, Aborted | LostPeer)
        ]
        if is_stuck or any(isinstance(error, LostPeer) for error in errors.values()):
            if not first_hand:
                concurrent.futures.wait({self._lost}, timeout=LAST_WORDS)
            rank = [*first_hand, *errors][0]
            error = SessionLost(f"{_describe(rank, errors[rank])}; {RESUME}")
            with suppress(concurrent.futures.InvalidStateError):  # a process ended meanwhile
                self._lost.set_exception(error)
            if not first_hand:
                self._give_up(outcomes[0])
            self._stop(outcomes[0])
        for rank in [*first_hand, *errors]:
            raise errors[rank]

    def _stop(self, own: Outcome) -> None:
        """End all processes, and wait for the part of this one."""
        self._reduce.abort()  # first: a process that ends deletes the file of the connections
        self.close()
        # it ends soon, unless it is connecting, or computes without a sum
        concurrent.futures.wait({own}, timeout=LAST_WORDS)

    def _give_up(self, own: Outcome) -> None:
        """End all processes, and raise the error of the one that is gone."""
        self._stop(own)
        self._raise_if_lost()

    def _raise_if_lost(self) -> None:
        if self._lost.done():
            self.close()
            error = self._lost.exception()
            assert error is not None
            raise copy.copy(error)  # a traceback would keep this group, and its processes, alive


def _describe(rank: int, error: BaseException) -> str:
    """Return the error of a device with its name, which the text of some errors begins with."""
    text, name = str(error), f"device {rank}"
    return text if text.startswith(f"{name}: ") else f"{name} failed: {text}"


def _bound(work: Callable[[], T]) -> Callable[[], T]:
    """Let work report its progress, and stop, as the worker does that this thread works for."""
    worker, context = current_worker(), contextvars.copy_context()

    def bound() -> T:
        with working_for(worker):
            return context.run(work)

    return bound


def _end(
    peers: Sequence[Peer], thread: TaskThread, folder: tempfile.TemporaryDirectory[str]
) -> None:
    for peer in peers:
        peer.end()
    thread.tasks.put(None)
    folder.cleanup()

"""The program of a further device's process, which runs what the process of device 0 sends.

Messages are pickles on standard input and output: a call's number, its kind, and a value.
"""

from __future__ import annotations

import os
import pickle
import queue
import shutil
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from adapters.peft.runtime.devices.peers import Aborted

if TYPE_CHECKING:
    import torch

    from adapters.peft.runtime.devices.all_reduce import AllReduce

R = TypeVar("R")
Message = tuple[int, str, Any]


@dataclass(frozen=True)
class Start:
    """The first message to a process."""

    rank: int
    count: int
    store: str  # path of the file by which the devices find each other
    setup: Callable[..., object]  # called as `setup(worker, *arguments)`
    arguments: tuple[Any, ...]


@dataclass
class DeviceWorker:
    """A device of the group that is not the first one."""

    rank: int
    count: int
    reduce: AllReduce
    replies: IO[bytes]
    calls: queue.SimpleQueue[Message] = field(default_factory=queue.SimpleQueue)
    answers: queue.SimpleQueue[Message] = field(default_factory=queue.SimpleQueue)
    objects: dict[str, Any] = field(default_factory=dict)  # such as its trainers, by name
    call: int = 0  # the number of the running call

    def gather(self, items: Sequence[R]) -> list[R]:
        self.send("gather", list(items))
        gathered: list[R] = self._answer()
        return gathered

    def all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        self.reduce(tensors)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a handler in the process of device 0, and return its result or raise its error."""
        self.send("ask", (name, arguments))
        return self._answer()

    def send(self, kind: str, value: Any) -> None:
        self.replies.write(pickle.dumps((self.call, kind, value)))
        self.replies.flush()

    def read(self, requests: IO[bytes], store: Path) -> None:
        """Pass messages on; end this process when that of device 0 is gone.

        The folder of `store` is deleted, because a process that was killed could not do that.
        """
        try:
            while True:
                message: Message = pickle.load(requests)  # noqa: S301 by our starter
                (self.calls if message[1] == "run" else self.answers).put(message)
        except (EOFError, OSError):
            shutil.rmtree(store.parent, ignore_errors=True)
            os._exit(1)

    def serve(self) -> None:
        """Run calls one after another, until the process of device 0 is gone."""
        while True:
            self.call, _, (function, arguments, forgotten) = self.calls.get()
            for name in forgotten:
                self.objects.pop(name, None)
            self.attempt(function, arguments)

    def attempt(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Run one call, and send its result or its error."""
        from adapters.peft.runtime.exhausted_memory import explaining_memory

        try:
            with explaining_memory(f"device {self.rank}"):
                result = function(self, *arguments)
            self.send("done", result)
        except Exception as error:  # noqa: BLE001 it is raised in the process of device 0
            self.send("failed", _sendable(error))

    def _answer(self) -> Any:
        """Return the answer to the running call; those to earlier calls came too late."""
        while True:
            call, kind, value = self.answers.get()
            if call != self.call:
                continue
            if kind == "abort":
                raise Aborted
            if kind == "raise":
                raise value
            return value


class Remote:
    """An object of the process of device 0, under the name of a handler that calls its methods."""

    def __init__(self, worker: DeviceWorker, name: str) -> None:
        self._worker, self._name = worker, name

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments: self._worker.ask(self._name, method, arguments)


def served(target: Any) -> Callable[..., Any]:
    """Return the handler by which other processes call the methods of an object."""
    return lambda method, arguments: getattr(target, method)(*arguments)


def serve() -> None:
    """Connect to the process of device 0, set up, and run its calls."""
    requests, replies = _take_pipes()
    start: Start = pickle.load(requests)  # noqa: S301 by our starter
    _drop_logs()
    from adapters.peft.runtime.devices.all_reduce import AllReduce

    reduce = AllReduce(start.rank, start.count, start.store)
    worker = DeviceWorker(start.rank, start.count, reduce, replies)
    threading.Thread(target=worker.read, args=(requests, Path(start.store)), daemon=True).start()
    worker.attempt(start.setup, start.arguments)
    worker.serve()


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return standard input and output, and put an empty one and standard error in their place."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    return requests, replies


def _drop_logs() -> None:
    """Write no log: device 0 logs the same."""
    import structlog

    def drop(*_: Any) -> Any:
        raise structlog.DropEvent

    structlog.configure(processors=[drop])


def _sendable(error: Exception) -> Exception:
    """Return an error that can be pickled, with the place where it was raised."""
    from kitchen.errors import KitchenError, RunFailed, describe_error

    place = "".join(traceback.format_exception(error))[-10_000:]
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 our own
    except Exception:  # noqa: BLE001 whatever its class demands
        error = RunFailed(describe_error(error))
    if not isinstance(error, KitchenError | Aborted):
        error.add_note(f"in the process of another device:\n{place}")
    return error


if __name__ == "__main__":
    # classes of this module have its own name in pickles, not __main__
    from adapters.peft.runtime.devices import process

    process.serve()

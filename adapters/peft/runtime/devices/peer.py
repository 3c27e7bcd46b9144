"""A further device, as the process of device 0 sees it: a process, its pipes, and its end."""

from __future__ import annotations

import concurrent.futures
import copy
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from adapters.peft.runtime.devices.process import Start
from kitchen.errors import SessionLost

Handler = Callable[..., Any]
PROGRAM = "adapters.peft.runtime.devices.process"
CUDA = "CUDA_VISIBLE_DEVICES"
OUTPUT = 2_000  # characters of the output of a process that the error of its end repeats
NO_CALL = -1  # while none runs; 0 is the setup
END_SECONDS = 5.0  # that a process has to end by itself
RESUME = "the other devices were stopped; `kitchen resume RUN` continues from the last save point"


class Peer:
    """The process of a further device; a thread reads what it sends."""

    def __init__(self, device: str, start: Start, lost: concurrent.futures.Future[Any]) -> None:
        """`device` is its name, such as cuda:1; `lost` gets the error when the process ends."""
        self.rank, self._device, self._lost = start.rank, device, lost
        self._output, self._sending = "", threading.Lock()
        self.begin(0, {})
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM],
            env=environment_of(device, os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C does not reach it
        )
        self.process = self._process.pid
        self._printer = self._thread(self._keep_output)
        self._write(start)
        self._thread(self._read)

    def begin(self, call: int, handlers: Mapping[str, Handler]) -> concurrent.futures.Future[Any]:
        """Prepare for a call, and return the future of its result."""
        self._items = queue.SimpleQueue[Any]()
        self._outcome = concurrent.futures.Future[Any]()
        self._handlers, self._call = dict(handlers), call
        if self._lost.done():
            self._items.put(self._lost.exception())
        return self._outcome

    def finish(self) -> None:
        """Drop the results of the call: the traceback of an error would keep the group alive."""
        self.begin(NO_CALL, {})

    def send(self, kind: str, value: Any) -> None:
        self._write((self._call, kind, value))

    def next_items(self) -> list[Any]:
        """Return the items that the device gathers next; raises its error if it failed."""
        items = self._items.get()
        if isinstance(items, BaseException):
            raise copy.copy(items)  # `_lost` may hold it, and a traceback the group
        gathered: list[Any] = items
        return gathered

    def end(self) -> None:
        """Let the process end; kill it if it does not."""
        assert self._process.stdin is not None
        with suppress(OSError):  # with an unread message in it
            self._process.stdin.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"device {self.rank}", daemon=True)
        thread.start()
        return thread

    def _write(self, message: Any) -> None:
        data = pickle.dumps(message)
        assert self._process.stdin is not None
        with suppress(OSError, ValueError), self._sending:  # it has ended; `_read` reports that
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as replies:
            while True:
                try:
                    call, kind, value = pickle.load(replies)  # noqa: S301 by our process
                except (EOFError, OSError, pickle.UnpicklingError):
                    break
                self._receive(call, kind, value)
                del value  # it would live until the next one
        self._fail(self._end_error())

    def _receive(self, call: int, kind: str, value: Any) -> None:
        if call == 0 and kind == "failed":  # it could not be set up
            self._fail(value)
        elif call != self._call:
            return
        elif kind == "gather":
            self._items.put(value)
        elif kind == "ask":
            self._answer(*value)
        elif kind == "done":
            self._outcome.set_result(value)
        else:
            self._items.put(value)
            self._outcome.set_exception(value)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            self.send("reply", self._handlers[name](*arguments))
        except Exception as error:  # noqa: BLE001 it is raised in the process that asked
            self.send("raise", error)

    def _fail(self, error: BaseException) -> None:
        for future in (self._lost, self._outcome):
            with suppress(concurrent.futures.InvalidStateError):  # done, or another ended first
                future.set_exception(error)
        self._items.put(error)

    def _end_error(self) -> SessionLost:
        code = self._process.wait()
        self._printer.join(END_SECONDS)
        words = f"; it wrote: {self._output.strip()}" if self._output.strip() else ""
        return SessionLost(
            f"device {self.rank} ({self._device}): its process {self._process.pid} ended with "
            f"{_describe(code)}{words}; {RESUME}"
        )

    def _keep_output(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as output:
            for line in output:
                self._output = (self._output + line.decode(errors="replace"))[-OUTPUT:]


def environment_of(device: str, starter: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a device's process, which sees no other CUDA device.

    New threads launch kernels on the first device that is visible.
    """
    path = os.pathsep.join(folder or "." for folder in sys.path)
    environment = {**starter, "PYTHONPATH": path}
    kind, _, number = device.partition(":")
    if kind == "cuda":
        visible = [name for name in starter.get(CUDA, "").split(",") if name]
        environment[CUDA] = visible[int(number)] if visible else number
    return environment


def _describe(code: int) -> str:
    """Return an exit code with its meaning."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    cause = ", as it does when the memory of the machine runs out" if name == "SIGKILL" else ""
    return f"exit code {code}: the system killed it ({name}){cause}"

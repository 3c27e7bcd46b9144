"""Blocking functions of users, called in worker processes that are killed if they hang."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from os import environ
from pathlib import Path
from time import monotonic
from typing import Any

from kitchen.errors import RunFailed, WorkerExit
from stages.tasks.subprocesses import WorkerEnded, end_process
from stages.tasks.time_limit import paused_limit

# seconds that a call waits for a busy worker before another one is started; if starting one takes
# longer, as long as that takes
PATIENCE = 0.05
_PROGRAM = Path(__file__).with_name("worker_process.py")
_LAST_WORDS = 500  # characters of a process's output that the error of its end repeats

FunctionName = tuple[str, str]  # module and attribute


def folder_of(module: str) -> str | None:
    """Return the folder from which a worker can import a module; None for one without a file.

    The code of a notebook or script, `__main__`, is no module that can be imported.
    """
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or file is None:
        return None
    is_package = Path(file).name == "__init__.py"
    return str(Path(file).resolve().parents[module.count(".") + is_package])


class FunctionFailed(RunFailed):
    """An error raised by a function in a worker process, with its type and the user's frame."""


@dataclass(frozen=True)
class Unsendable:
    """A result that cannot be sent from a worker process; its repr is that of the result."""

    text: str

    def __repr__(self) -> str:
        return self.text


class FunctionPool:
    """Worker processes for blocking functions of users, one per call in flight, until `close`.

    A thread cannot be killed, and all threads share one interpreter. A worker is started when no
    other becomes free in the time that starting one takes, so that fast functions need only one. It
    has the environment of this process, the same hash seed as the others, and random numbers that
    depend on the arguments of a call alone; what it prints appears on standard error. It ends with
    this process.
    """

    def __init__(self) -> None:
        self._idle: list[_FunctionWorker] = []
        self._waiting: deque[asyncio.Future[_FunctionWorker]] = deque()
        self._started = 0  # workers that have not ended
        self._loaded = 0  # those of them that have loaded a function
        self._patience = PATIENCE

    async def call(self, name: FunctionName, *arguments: Any, **named: Any) -> Any:
        """Call a function in a worker and return its result; if cancelled, kill the worker.

        Starting a worker does not count towards a TimeLimit. Raises FunctionFailed if the function
        fails, and WorkerExit if it exits. If the worker is killed, by a lack of memory for example,
        another one is tried once; if that is killed too, raises WorkerEnded.
        """
        request = pickle.dumps((name, arguments, named, None))
        try:
            return await self._call(name, request)
        except WorkerEnded:
            return await self._call(name, request)

    async def _call(self, name: FunctionName, request: bytes) -> Any:
        with paused_limit():
            worker = await self._worker()
            if name not in worker.loaded:
                began = monotonic()
                await self._load(worker, name)
                self._patience = max(self._patience, monotonic() - began)
        reply = await self._exchange(worker, request)
        self._release(worker)
        return _result(reply)

    async def _worker(self) -> _FunctionWorker:
        """Return a free worker, or a new one if none is soon free."""
        if self._idle:
            return self._idle.pop()
        waiter: asyncio.Future[_FunctionWorker] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            while self._started and not waiter.done():
                await asyncio.wait([waiter], timeout=self._patience)
                if self._loaded:
                    break
        except BaseException:
            if not waiter.cancel():
                self._release(waiter.result())
            raise
        if waiter.done():
            return waiter.result()
        waiter.cancel()
        self._started += 1
        return _FunctionWorker()

    async def _load(self, worker: _FunctionWorker, name: FunctionName) -> None:
        """Import a function in a worker; raises FunctionFailed if it cannot be."""
        path = [*(folder or "." for folder in sys.path), *filter(None, [folder_of(name[0])])]
        reply = await self._exchange(worker, pickle.dumps((name, (), {}, path)))
        if "error" not in reply:
            self._loaded += not worker.loaded
            worker.loaded.add(name)
            return
        self._end(worker)
        _result(reply)

    async def _exchange(self, worker: _FunctionWorker, request: bytes) -> dict[str, Any]:
        try:
            return await asyncio.wrap_future(worker.submit(request))
        except BaseException:
            self._end(worker)
            raise

    def _release(self, worker: _FunctionWorker) -> None:
        """Give a worker to the first call that waits for one."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._idle.append(worker)

    def _end(self, worker: _FunctionWorker) -> None:
        self._started -= 1
        self._loaded -= bool(worker.loaded)
        worker.close()

    def close(self) -> None:
        """Kill the idle workers; busy ones are killed when their callers are done or cancelled."""
        while self._idle:
            self._end(self._idle.pop())


class _FunctionWorker:
    """A process that answers one call after another, and the threads that listen to it."""

    def __init__(self) -> None:
        self.loaded: set[FunctionName] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            env={"PYTHONHASHSEED": "0", **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C does not reach it
        )
        self._last_words = ""
        self._thread = ThreadPoolExecutor(1)
        self._printer = threading.Thread(target=self._print, daemon=True)
        self._printer.start()

    def submit(self, request: bytes) -> Future[dict[str, Any]]:
        return self._thread.submit(self._call, request)

    def _call(self, request: bytes) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # the process has ended; then there is no reply either
            self._process.stdin.write(pickle.dumps(request))
            self._process.stdin.flush()
        try:
            reply: dict[str, Any] = pickle.load(self._process.stdout)  # noqa: S301 by our worker
        except (EOFError, pickle.UnpicklingError):
            status = self._process.wait()
            self._printer.join(1.0)
            words = self._last_words[-_LAST_WORDS:].strip()
            raise WorkerEnded(
                f"its process ended with status {status}{f': {words}' if words else ''}"
            ) from None
        return reply

    def _print(self) -> None:
        """Print the process's output, line by line, where this process prints."""
        assert self._process.stderr is not None
        with self._process.stderr as output:
            for line in output:
                text = line.decode(errors="replace")
                self._last_words = (self._last_words + text)[-_LAST_WORDS:]
                sys.stderr.write(text)
                sys.stderr.flush()

    def close(self) -> None:
        end_process(self._process)
        self._thread.shutdown()  # the process that it waits for has ended
        # its output does not end while a program that it left behind, a server for example, has it
        self._printer.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # with an unread request in it
                pipe.close()
        self._process.wait()


def _result(reply: Mapping[str, Any]) -> Any:
    """Return the result of a reply, or raise its error."""
    if "error" in reply:
        exits = reply["exits"]
        error = WorkerExit(reply["error"]) if exits else FunctionFailed(reply["error"])
        error.add_note(f"in the worker process:\n{reply['traceback']}")
        raise error
    return Unsendable(reply["unsendable"]) if "unsendable" in reply else reply["result"]

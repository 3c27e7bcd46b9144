"""Functions called in worker processes, which can be killed if they hang."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from kitchen.errors import describe_error
from kitchen.secrets import is_secret

CPU_LIMIT = 600  # seconds of processor time per call


class WorkerEnded(ChildProcessError):
    """A worker process that ended in the middle of a call, killed for lack of memory perhaps."""


class WorkerPool:
    """Worker processes, one per call in flight; they are reused until `close`.

    A thread cannot be killed, and a number like 9**9**9 is computed without releasing the GIL, so a
    caller that gives up waiting can only kill the process. All processes have the same hash seed,
    so that the iteration order of sets is the same in each.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a worker and return its result as JSON types; if cancelled, kill it.

        `function` is defined in a module; its arguments and result are of JSON types, or
        dataclasses of them. Raises RuntimeError if it fails. If the worker is killed, by a lack of
        memory for example, another one is tried once; if that is killed too, raises WorkerEnded.
        """
        worker = self._idle.pop() if self._idle else _Worker()
        try:
            return await self._call(worker, function, *arguments)
        except WorkerEnded:
            return await self._call(_Worker(), function, *arguments)

    async def _call(self, worker: _Worker, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            reply = await asyncio.wrap_future(worker.submit(function, *arguments))
        except BaseException:
            worker.close()
            raise
        self._idle.append(worker)
        return _result(reply)

    def close(self) -> None:
        """Kill the idle workers; busy ones are killed when their callers are done or cancelled.

        If this process itself is killed, workers end after their call, or after CPU_LIMIT.
        """
        while self._idle:
            self._idle.pop().close()


def call_in_subprocess(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function as WorkerPool.call does, in a process for this one call, and wait."""
    worker = _Worker()
    try:
        return _result(worker.submit(function, *arguments).result())
    finally:
        worker.close()


def call_each_in_subprocess(
    function: Callable[..., Any],
    calls: Iterable[Sequence[Any]],
    timeout: float,
    warm_up: Sequence[Any],
) -> Iterator[Any]:
    """Call a function as WorkerPool.call does, once per list of arguments, in one process.

    Yields each result, or the error of the call: TimeoutError after `timeout` seconds, RuntimeError
    if it failed, WorkerEnded if its process was killed. The process is replaced after an error.
    Before the first call in a process, one with the arguments `warm_up` imports what the function
    needs, however long that takes.
    """
    worker, is_warm = _Worker(), False
    try:
        for arguments in calls:
            try:
                if not is_warm:
                    _result(worker.submit(function, *warm_up).result())
                    is_warm = True
                result = _result(worker.submit(function, *arguments).result(timeout))
            except (TimeoutError, RuntimeError, WorkerEnded) as error:
                worker.close()
                worker, is_warm = _Worker(), False
                result = error
            yield result
    finally:
        worker.close()


class _Worker:
    """A process that answers one call after another, and a thread that waits for it."""

    def __init__(self) -> None:
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        public_env = {name: value for name, value in os.environ.items() if not is_secret(name)}
        self._stderr = TemporaryFile()  # noqa: SIM115 open as long as the process runs
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            env={**public_env, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # Ctrl-C does not reach it
        )
        self._thread = ThreadPoolExecutor(1)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[dict[str, Any]]:
        module, name = function.__module__, function.__qualname__
        if module == "__main__" or getattr(import_module(module), name, None) is not function:
            raise TypeError(
                f"{module}.{name} cannot be called in a worker process: it must be a function of "
                "a module that can be imported"
            )
        return self._thread.submit(self._call, json.dumps([module, name, arguments]))

    def _call(self, request: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # the process has ended; then there is no reply either
            print(request, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            status, stderr = self._process.wait(), self._stderr_tail()
            raise WorkerEnded(
                f"its process ended with status {status}{f': {stderr}' if stderr else ''}"
            )
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _stderr_tail(self) -> str:
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - 500))
        return self._stderr.read().decode(errors="replace").strip()

    def close(self) -> None:
        end_process(self._process)
        self._thread.shutdown()  # the process that it waits for has ended
        self._stderr.close()
        # closes the pipes, even with an unread request in one of them
        with suppress(OSError), self._process:
            pass


def end_process(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session, with the processes that it started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _result(reply: dict[str, Any]) -> Any:
    if "error" in reply:
        error = RuntimeError(reply["error"])
        error.add_note(f"in the worker process:\n{reply['traceback']}")
        raise error
    return reply["result"]


def serve() -> None:
    """Answer the calls on standard input, line by line, until it ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output that a function prints must not be read as a reply
    for line in sys.stdin:
        _limit_cpu_time()
        try:
            module, name, arguments = json.loads(line)
            result = getattr(import_module(module), name)(*arguments)
            reply = json.dumps({"result": result}, default=_to_json)
        except BaseException as error:  # noqa: BLE001 it is reported to the caller
            trace = "".join(traceback.format_exception(error))
            reply = json.dumps(
                {"error": describe_error(error)[:1000], "traceback": trace[-10_000:]}
            )
        print(reply, file=replies, flush=True)


def _limit_cpu_time() -> None:
    """Limit the processor time of this call, in case the caller is gone and cannot kill it."""
    if find_spec("resource") is None:
        return  # not on this system
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(usage.ru_utime + usage.ru_stime) + CPU_LIMIT
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard_limit))


def _to_json(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else asdict(value)

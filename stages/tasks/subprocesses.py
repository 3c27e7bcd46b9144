"""Functions called in processes of their own, which can be ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from kitchen.secrets import is_secret

CPU_LIMIT = 600  # seconds of a processor that one question may take


class WorkerPool:
    """As many processes as are asked at one time; they stay for the next question, until `close`.

    No thread can be ended, and a number like 9**9**9 is worked out without letting any other thread
    run: whoever gives up waiting for a function can only end its process. All processes have one
    hash seed, so that the order of sets, and what depends on it, is the same in each.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What it gives, as JSON knows it; raises RuntimeError where it fails. Cancelled, it ends
        the process.

        `function` is one of a module, its arguments and what it gives are of JSON, or dataclasses
        of such.
        """
        one = self._idle.pop() if self._idle else _Worker()
        try:
            said = await asyncio.wrap_future(one.asked(function, *arguments))
        except BaseException:
            one.close()
            raise
        self._idle.append(one)
        return _given(said)

    def close(self) -> None:
        """End those that nobody waits for; the others end when nobody does any longer.

        Where this process is killed they end once they have answered, or have worked for LONGEST.
        """
        while self._idle:
            self._idle.pop().close()


def call_in_subprocess(function: Callable[..., Any], *arguments: Any) -> Any:
    """As Processes.call, in a process for this one question; waits."""
    one = _Worker()
    try:
        return _given(one.asked(function, *arguments).result())
    finally:
        one.close()


class _Worker:
    """A process that answers one question after the other, and a thread that waits for it."""

    def __init__(self) -> None:
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        known = {name: value for name, value in os.environ.items() if not is_secret(name)}
        self._complaints = TemporaryFile()  # noqa: SIM115 it is open as long as the process is
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            env={**known, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # whose session Ctrl-C does not reach
            stderr=self._complaints,
            text=True,
            start_new_session=True,
        )
        self._thread = ThreadPoolExecutor(1)

    def asked(self, function: Callable[..., Any], *arguments: Any) -> Future[dict[str, Any]]:
        module, name = function.__module__, function.__qualname__
        if module == "__main__" or getattr(import_module(module), name, None) is not function:
            raise TypeError(
                f"{module}.{name} cannot be called in a process of its own: it must be a function "
                "of a "
                "module that can be imported"
            )
        return self._thread.submit(self._answered, json.dumps([module, name, arguments]))

    def _answered(self, question: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # it has ended; then there is no line
            print(question, file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            status, last = self._process.wait(), self._last_words()
            raise RuntimeError(
                f"its process ended with status {status}{f': {last}' if last else ''}"
            )
        said: dict[str, Any] = json.loads(line)
        return said

    def _last_words(self) -> str:
        self._complaints.seek(max(0, self._complaints.seek(0, os.SEEK_END) - 500))
        return self._complaints.read().decode(errors="replace").strip()

    def close(self) -> None:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # with whatever it has started itself
        self._process.kill()
        self._thread.shutdown()  # what it waited for has ended
        self._complaints.close()
        # closes its pipes, be there a question in one that nobody reads
        with suppress(OSError), self._process:
            pass


def _given(said: dict[str, Any]) -> Any:
    if "failed" in said:
        raise RuntimeError(said["failed"])
    return said["gave"]


def serve() -> None:
    """Answer the questions on standard input, line by line, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a function prints is no answer
    for line in sys.stdin:
        _limit()
        try:
            module, name, arguments = json.loads(line)
            said = json.dumps(
                {"gave": getattr(import_module(module), name)(*arguments)}, default=_plain
            )
        except Exception as error:  # noqa: BLE001 it is told to who asked
            said = json.dumps({"failed": f"{type(error).__name__}: {error}"[:1000]})
        print(said, file=answers, flush=True)


def _limit() -> None:
    """So many seconds of work for this question, should whoever asked be gone and unable to end it."""
    if find_spec("resource") is None:
        return  # not on this system
    import resource

    spent, (_, most) = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrlimit(resource.RLIMIT_CPU),
    )
    wanted = int(spent.ru_utime + spent.ru_stime) + CPU_LIMIT
    resource.setrlimit(
        resource.RLIMIT_CPU, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most)
    )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else asdict(value)

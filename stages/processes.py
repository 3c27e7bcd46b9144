"""Functions called in processes of their own, which can be ended."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from typing import Any


class Processes:
    """As many processes as are asked at one time; they stay for the next question, until `close`.

    No thread can be ended, and a number like 9**9**9 is worked out without letting any other thread run: whoever gives
    up waiting for a function can only end its process. All processes have one hash seed, so that the order of sets,
    and what depends on it, is the same in each.
    """

    def __init__(self) -> None:
        self._idle: list[_Process] = []

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What it gives, as JSON knows it; raises RuntimeError where it fails. Cancelled, it ends the process.

        `function` is one of a module, its arguments and what it gives are of JSON, or dataclasses of such.
        """
        one = self._idle.pop() if self._idle else _Process()
        try:
            said = await asyncio.wrap_future(one.asked(function, *arguments))
        except BaseException:
            one.close()
            raise
        self._idle.append(one)
        return _given(said)

    def close(self) -> None:
        """End those that nobody waits for; the others end when nobody does any longer, or when this process ends."""
        while self._idle:
            self._idle.pop().close()


def call_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """As Processes.call, in a process for this one question; waits."""
    one = _Process()
    try:
        return _given(one.asked(function, *arguments).result())
    finally:
        one.close()


class _Process:
    """A process that answers one question after the other, and a thread that waits for it."""

    def __init__(self) -> None:
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"], env={
                **os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True)  # whose session Ctrl-C does not reach
        self._thread = ThreadPoolExecutor(1)

    def asked(self, function: Callable[..., Any], *arguments: Any) -> Future[dict[str, Any]]:
        question = json.dumps([function.__module__, function.__qualname__, arguments])
        return self._thread.submit(self._answered, question)

    def _answered(self, question: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(question, file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"its process ended with status {self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        self._process.kill()
        self._thread.shutdown()  # what it waited for has ended
        with suppress(OSError), self._process:  # closes its pipes, be there a question in one that nobody reads
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
        try:
            module, name, arguments = json.loads(line)
            said = json.dumps({"gave": getattr(import_module(module), name)(*arguments)}, default=asdict)
        except Exception as error:  # noqa: BLE001 it is told to who asked
            said = json.dumps({"failed": f"{type(error).__name__}: {error}"[:1000]})
        print(said, file=answers, flush=True)

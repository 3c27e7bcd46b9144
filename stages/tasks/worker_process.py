"""The program of a worker process, which calls functions of users one after another.

It is run as a file, and imports only NumPy before it loads a function: importing the package
`stages.tasks` would take five times as long. Requests and replies are pickles on standard input and
output; the function itself sees neither.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import pickle
import queue
import random
import signal
import sys
import threading
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import numpy as np

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

Functions = dict[tuple[str, str], Callable[..., Any]]


def serve() -> None:
    """Answer requests until standard input ends, and then end at once, even within a call."""
    requests, replies = _take_pipes()
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, waiting), daemon=True).start()
    functions: Functions = {}
    process = os.getpid()
    while True:
        request = waiting.get()
        _end_with_caller(requests, True)
        reply = _reply(request, functions)
        sys.stdout.flush()
        sys.stderr.flush()
        if os.getpid() != process:  # a child that the function forked; it has no reply to give
            os._exit(0)
        _end_with_caller(requests, False)
        replies.write(reply)
        replies.flush()


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return standard input and output, and put an empty one and standard error in their place."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    return requests, replies


def _read(requests: IO[bytes], waiting: queue.SimpleQueue[bytes]) -> None:
    """Pass requests on; when the caller is gone, end this process and those that it started."""
    try:
        while True:
            waiting.put(pickle.load(requests))  # noqa: S301 by the process that started this one
    except (EOFError, OSError):
        if hasattr(os, "killpg"):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)


def _end_with_caller(requests: IO[bytes], on: bool) -> None:
    """Let the kernel end this process group when the pipe of the caller is closed, or not.

    During a call nothing else happens to this pipe. A thread would not be enough: it does not run
    while a regular expression or a long computation holds the interpreter's lock.
    """
    if fcntl is None or not hasattr(os, "O_ASYNC"):
        return
    pipe = requests.fileno()
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)


def _reply(request: bytes, functions: Functions) -> bytes:
    """Load or call a function, and return the pickled reply: its result or its error."""
    try:
        name, arguments, named, path = pickle.loads(request)  # noqa: S301 by our caller
        if path is not None:
            functions[name] = _load(name, path)
            return _pickled({"result": None})
        _seed_generators(request)
        return _pickled(_call(functions[name], arguments, named))
    except BaseException as error:  # noqa: BLE001 it is reported to the caller
        from kitchen.errors import describe_error

        return _pickled(
            {
                "error": describe_error(error),
                "exits": not isinstance(error, Exception),
                "traceback": "".join(traceback.format_exception(error))[-10_000:],
            }
        )


def _load(name: tuple[str, str], path: Sequence[str]) -> Callable[..., Any]:
    sys.path[:] = path
    function: Callable[..., Any] = vars(importlib.import_module(name[0]))[name[1]]
    return function


def _seed_generators(request: bytes) -> None:
    """Seed the global random number generators by the call.

    So random numbers depend on the arguments, and not on the calls before in this process.
    """
    seed = zlib.crc32(request)
    random.seed(seed)
    np.random.seed(seed)


def _call(
    function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    result = function(*arguments, **named)
    if inspect.isawaitable(result):
        result = asyncio.run(_awaited(result))
    try:
        pickle.dumps(result)
    except Exception:  # noqa: BLE001 whatever a __reduce__ of the user's raises
        return {"unsendable": repr(result)[:1000]}
    return {"result": result}


async def _awaited(result: Any) -> Any:
    return await result


def _pickled(reply: dict[str, Any]) -> bytes:
    return pickle.dumps(reply)


if __name__ == "__main__":
    serve()

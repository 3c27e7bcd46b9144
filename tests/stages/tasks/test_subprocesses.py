"""Functions called in worker processes, some of which never end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stages.tasks.subprocesses import CPU_LIMIT, WorkerPool, call_in_subprocess


@dataclass(frozen=True)
class Pair:
    """A dataclass to return."""

    one: int
    other: str


def paired(one: int, other: str) -> Pair:
    print("this is no answer")
    return Pair(one, other)


def process(*_: Any) -> int:
    return os.getpid()


def divided() -> float:
    return 1 / 0


def endless(base: int) -> int:
    """Works in one call that lets no other thread run, as no thread and no signal handler could
    end.
    """
    return base ** (base**base)


def gone() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def parent(seconds: float) -> None:
    """Start a child process that inherits the pipes, and wait for it."""
    child = os.fork()
    time.sleep(seconds)
    os._exit(0) if child == 0 else os.waitpid(child, 0)


def exit_with_a_message() -> None:
    os.write(2, b"no room for it")
    os._exit(3)


def of_numpy() -> Any:
    return [np.float32(0.5), np.int64(2)]


def environment() -> list[str]:
    return list(os.environ)


def most_seconds() -> int:
    return resource.getrlimit(resource.RLIMIT_CPU)[0]


def order_of_a_set() -> list[str]:
    return list({"thyme", "sage", "rosemary", "parsley"})


def test_call_returns_the_result() -> None:
    assert call_in_subprocess(paired, 1, "é\n") == {"one": 1, "other": "é\n"}
    assert call_in_subprocess(process) != os.getpid()
    assert call_in_subprocess(order_of_a_set) == call_in_subprocess(order_of_a_set)


def test_worker_is_reused() -> None:
    async def asked() -> list[int]:
        both = await asyncio.gather(processes.call(process), processes.call(process))
        return [*both, await processes.call(process)]

    processes = WorkerPool()
    one, other, again = asyncio.run(asked())
    processes.close()
    assert one != other
    assert again in (one, other)
    with pytest.raises(ProcessLookupError):
        os.kill(one, 0)


def test_exception_is_raised_and_worker_survives() -> None:
    async def asked() -> int:
        with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero"):
            await processes.call(divided)
        with pytest.raises(RuntimeError, match="its process ended with status -9"):
            await processes.call(gone)
        return int(await processes.call(process))

    processes = WorkerPool()
    assert asyncio.run(asked())
    processes.close()


def test_cancelled_call_kills_the_worker() -> None:
    async def asked() -> int:
        pid = await processes.call(process)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(processes.call(endless, 9), 0.5)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        return int(await processes.call(process))

    processes, began = WorkerPool(), time.monotonic()
    assert asyncio.run(asked())
    processes.close()
    assert time.monotonic() - began < 60


def test_grandchildren_are_killed_too() -> None:
    async def asked() -> None:
        await processes.call(process)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(processes.call(parent, 60.0), 0.3)

    processes, began = WorkerPool(), time.monotonic()
    asyncio.run(asked())
    assert time.monotonic() - began < 30


def test_worker_that_died_idle_is_reported() -> None:
    async def asked() -> None:
        os.kill(await processes.call(process), signal.SIGKILL)
        with pytest.raises(RuntimeError, match="its process ended with status -9"):
            await processes.call(process)

    processes = WorkerPool()
    asyncio.run(asked())


def test_stderr_of_a_dead_worker_is_reported() -> None:
    with pytest.raises(RuntimeError, match="ended with status 3: no room for it"):
        call_in_subprocess(exit_with_a_message)


def test_numpy_numbers_become_json_numbers() -> None:
    assert call_in_subprocess(of_numpy) == [0.5, 2]


def test_worker_environment_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_HUB_TOKEN", "abc123")
    monkeypatch.setenv("SOME_FOLDER", "abc123")
    known = call_in_subprocess(environment)
    assert "SOME_FOLDER" in known
    assert "SOME_HUB_TOKEN" not in known


def test_cpu_limit_ends_an_orphaned_worker() -> None:
    assert CPU_LIMIT <= call_in_subprocess(most_seconds) <= CPU_LIMIT + 60


def test_functions_that_cannot_be_imported_are_refused() -> None:
    def local() -> None: ...

    with pytest.raises(TypeError, match="must be a function of a module that can be imported"):
        call_in_subprocess(local)

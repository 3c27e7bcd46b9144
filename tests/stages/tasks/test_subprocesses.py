"""Functions in processes of their own, among them some that never end."""

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
    """Something to give."""

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
    """Starts a process of its own, which holds on to what it was given, and waits for it."""
    child = os.fork()
    time.sleep(seconds)
    os._exit(0) if child == 0 else os.waitpid(child, 0)


def told_off() -> None:
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


def test_what_a_function_gives_comes_back() -> None:
    assert call_in_subprocess(paired, 1, "é\n") == {"one": 1, "other": "é\n"}
    assert call_in_subprocess(process) != os.getpid()
    assert call_in_subprocess(order_of_a_set) == call_in_subprocess(order_of_a_set)


def test_a_process_stays_for_the_next_question() -> None:
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


def test_what_goes_wrong_is_told_and_the_next_question_is_answered() -> None:
    async def asked() -> int:
        with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero"):
            await processes.call(divided)
        with pytest.raises(RuntimeError, match="its process ended with status -9"):
            await processes.call(gone)
        return int(await processes.call(process))

    processes = WorkerPool()
    assert asyncio.run(asked())
    processes.close()


def test_what_never_ends_is_ended() -> None:
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


def test_what_it_has_started_itself_ends_with_it() -> None:
    async def asked() -> None:
        await processes.call(process)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(processes.call(parent, 60.0), 0.3)

    processes, began = WorkerPool(), time.monotonic()
    asyncio.run(asked())
    assert time.monotonic() - began < 30


def test_one_that_ended_while_nobody_asked_it_is_told_of() -> None:
    async def asked() -> None:
        os.kill(await processes.call(process), signal.SIGKILL)
        with pytest.raises(RuntimeError, match="its process ended with status -9"):
            await processes.call(process)

    processes = WorkerPool()
    asyncio.run(asked())


def test_its_last_words_are_told() -> None:
    with pytest.raises(RuntimeError, match="ended with status 3: no room for it"):
        call_in_subprocess(told_off)


def test_numbers_of_numpy_are_numbers() -> None:
    assert call_in_subprocess(of_numpy) == [0.5, 2]


def test_it_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_HUB_TOKEN", "abc123")
    monkeypatch.setenv("SOME_FOLDER", "abc123")
    known = call_in_subprocess(environment)
    assert "SOME_FOLDER" in known
    assert "SOME_HUB_TOKEN" not in known


def test_it_ends_by_itself_if_nobody_can_end_it() -> None:
    assert CPU_LIMIT <= call_in_subprocess(most_seconds) <= CPU_LIMIT + 60


def test_functions_that_cannot_be_found_again_are_refused() -> None:
    def local() -> None: ...

    with pytest.raises(TypeError, match="must be a function of a module that can be imported"):
        call_in_subprocess(local)

"""Functions in processes of their own, among them some that never end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import pytest

from stages.processes import Processes, call_apart


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
    """Works in one call that lets no other thread run, as no thread and no signal handler could end."""
    return base ** (base**base)


def gone() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def order_of_a_set() -> list[str]:
    return list({"thyme", "sage", "rosemary", "parsley"})


def test_what_a_function_gives_comes_back() -> None:
    assert call_apart(paired, 1, "é\n") == {"one": 1, "other": "é\n"}
    assert call_apart(process) != os.getpid()
    assert call_apart(order_of_a_set) == call_apart(order_of_a_set)


def test_a_process_stays_for_the_next_question() -> None:
    async def asked() -> list[int]:
        both = await asyncio.gather(processes.call(process), processes.call(process))
        return [*both, await processes.call(process)]

    processes = Processes()
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

    processes = Processes()
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

    processes, began = Processes(), time.monotonic()
    assert asyncio.run(asked())
    processes.close()
    assert time.monotonic() - began < 60

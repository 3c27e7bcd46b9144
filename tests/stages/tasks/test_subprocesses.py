"""Functions called in worker processes, some of which never end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any

import numpy as np
import pytest

from stages.tasks.subprocesses import (
    CPU_LIMIT,
    WorkerEnded,
    WorkerPool,
    call_each_in_subprocess,
    call_in_subprocess,
)


@dataclass(frozen=True)
class Pair:
    """A dataclass to return."""

    number: int
    text: str


def make_pair(number: int, text: str) -> Pair:
    print("this is not a reply")
    return Pair(number, text)


def process_id(*_: Any) -> int:
    return os.getpid()


def divide_by_zero() -> float:
    return 1 / 0


def endless(base: int) -> int:
    """Compute in one call that never releases the GIL, so that only killing the process ends it."""
    return base ** (base**base)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fork_and_hang(fifo: str) -> None:
    """Write to a FIFO, and hang with a child process that has it open too."""
    writer = os.open(fifo, os.O_WRONLY)
    os.fork()
    os.write(writer, b".")
    signal.pause()


def exit_with_a_message() -> None:
    os.write(2, b"no room for it")
    os._exit(3)


def numpy_numbers() -> Any:
    return [np.float32(0.5), np.int64(2)]


def environment() -> list[str]:
    return list(os.environ)


def cpu_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_CPU)[0]


def set_in_order() -> list[str]:
    return list({"thyme", "sage", "rosemary", "parsley"})


def test_call_returns_the_result() -> None:
    assert call_in_subprocess(make_pair, 1, "é\n") == {"number": 1, "text": "é\n"}
    assert call_in_subprocess(process_id) != os.getpid()
    assert call_in_subprocess(set_in_order) == call_in_subprocess(set_in_order)


def test_worker_is_reused() -> None:
    async def call_three_times() -> list[int]:
        both = await asyncio.gather(pool.call(process_id), pool.call(process_id))
        return [*both, await pool.call(process_id)]

    pool = WorkerPool()
    first, second, third = asyncio.run(call_three_times())
    pool.close()
    assert first != second
    assert third in (first, second)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def describe(word: str) -> str:
    """Return the word and the number of this process, or do what the word says."""
    if word == "hang":
        endless(9)
    if word == "die":
        kill_itself()
    if word == "fail":
        divide_by_zero()
    return f"{word} in {os.getpid()}"


@pytest.mark.slow
def test_failed_calls_of_many_are_yielded_as_errors() -> None:
    words = ("one", "hang", "two", "die", "fail", "three")
    calls = call_each_in_subprocess(describe, [[word] for word in words], 2.0, ["warm"])
    one, hung, two, died, failed, three = calls
    assert [text.split()[0] for text in (one, two, three)] == ["one", "two", "three"]
    assert len({one.split()[2], two.split()[2], three.split()[2]}) == 3  # not after an error
    assert isinstance(hung, TimeoutError)
    assert isinstance(died, WorkerEnded)
    assert "ended with status -9" in str(died)
    assert isinstance(failed, RuntimeError)
    assert "ZeroDivisionError" in str(failed)


def test_exception_is_raised_and_worker_survives() -> None:
    async def call_after_failures() -> int:
        with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero"):
            await pool.call(divide_by_zero)
        with pytest.raises(WorkerEnded, match="its process ended with status -9"):
            await pool.call(kill_itself)
        return int(await pool.call(process_id))

    pool = WorkerPool()
    assert asyncio.run(call_after_failures())
    pool.close()


def test_cancelled_call_kills_the_worker() -> None:
    async def call_after_cancelling() -> int:
        pid = await pool.call(process_id)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.call(endless, 9), 0.5)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        return int(await pool.call(process_id))

    pool = WorkerPool()
    assert asyncio.run(call_after_cancelling())
    pool.close()


def test_grandchildren_are_killed_too(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    async def read_byte() -> bytes:
        """Wait for a byte, or for the end: b"" once no process has the FIFO open for writing."""
        readable, _, _ = await asyncio.to_thread(select, [reader], [], [], 60)
        assert readable, "a process hangs with the FIFO open"
        return os.read(reader, 1)

    async def cancel_a_hanging_call() -> bytes:
        call = asyncio.create_task(WorkerPool().call(fork_and_hang, str(fifo)))
        written = await read_byte() + await read_byte()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return written + await read_byte()

    assert asyncio.run(cancel_a_hanging_call()) == b".."
    os.close(reader)


def killed_once(folder: str) -> str:
    """Kill this process on the first call, as the kernel does when memory is short."""
    marker = Path(folder) / "killed"
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "graded"


def leave() -> None:
    raise SystemExit(3)


def test_killed_worker_is_replaced_once(tmp_path: Path) -> None:
    async def call_dead_workers() -> tuple[int, int, str]:
        two = await asyncio.gather(pool.call(process_id), pool.call(process_id))
        for pid in two:
            os.kill(pid, signal.SIGKILL)
        other = await pool.call(process_id)
        return two[0], other, await pool.call(killed_once, str(tmp_path))

    pool = WorkerPool()
    first, other, text = asyncio.run(call_dead_workers())
    pool.close()
    assert first != other
    assert text == "graded"


def test_exit_in_a_worker_is_an_error_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"SystemExit: 3 \(.*:\d+ in leave\)") as error:
        call_in_subprocess(leave)
    assert "raise SystemExit(3)" in error.value.__notes__[0]


def test_stderr_of_a_dead_worker_is_reported() -> None:
    with pytest.raises(WorkerEnded, match="ended with status 3: no room for it"):
        call_in_subprocess(exit_with_a_message)


def test_numpy_numbers_become_json_numbers() -> None:
    assert call_in_subprocess(numpy_numbers) == [0.5, 2]


def test_worker_environment_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_HUB_TOKEN", "abc123")
    monkeypatch.setenv("SOME_FOLDER", "abc123")
    names = call_in_subprocess(environment)
    assert "SOME_FOLDER" in names
    assert "SOME_HUB_TOKEN" not in names


def test_cpu_limit_ends_an_orphaned_worker() -> None:
    assert CPU_LIMIT <= call_in_subprocess(cpu_limit) <= CPU_LIMIT + 60


def test_functions_that_cannot_be_imported_are_refused() -> None:
    def local() -> None: ...

    with pytest.raises(TypeError, match="must be a function of a module that can be imported"):
        call_in_subprocess(local)

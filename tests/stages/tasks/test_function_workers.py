"""Blocking functions of users in worker processes, some of which never return."""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from kitchen.errors import RunFailed, WorkerExit, describe_error, exits_as_failures
from kitchen.ports.environments import StepResult
from stages.tasks.function_workers import (
    FunctionFailed,
    FunctionPool,
    Unsendable,
    folder_of,
)
from stages.tasks.subprocesses import WorkerEnded
from stages.tasks.tasks import LoadTasks
from stages.tasks.time_limit import TimeLimit, TookTooLong, name_callee

FUNCTIONS = "tests.support.own_functions"
ROWS = [{"prompt": "Name a dish.", "completion": "soup", "must": ["basil"]}]


@pytest.fixture(scope="module")
def pool() -> Iterator[FunctionPool]:
    with closing(FunctionPool()) as functions:
        yield functions


def call(pool: FunctionPool, function: str, *arguments: Any, **named: Any) -> Any:
    return asyncio.run(pool.call((FUNCTIONS, function), *arguments, **named))


def test_results_and_prints_arrive(pool: FunctionPool, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(pool, "double", "soup", count=3) == StepResult(12.0, parts={"length": 4})
    assert call(pool, "returns_coroutine", "soup") == "soup"
    assert call(pool, "environment", "PYTHONHASHSEED") is not None
    assert call(pool, "makes_lambda", "soup").text.startswith("<function makes_lambda")
    assert isinstance(call(pool, "makes_lambda", "soup"), Unsendable)
    pool.close()  # after it has printed everything
    assert "scored soup\n" in capfd.readouterr().err


def test_secrets_are_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "abc123")
    with closing(FunctionPool()) as pool:
        assert call(pool, "environment", "JUDGE_API_KEY") == "abc123"


def test_random_numbers_depend_on_the_arguments(pool: FunctionPool) -> None:
    first, other = call(pool, "draws", "soup"), call(pool, "draws", "stew")
    assert first != other
    pool.close()
    assert call(pool, "draws", "soup") == first


def test_fast_calls_share_a_worker(pool: FunctionPool) -> None:
    async def both() -> list[int]:
        name = FUNCTIONS, "process_id"
        return await asyncio.gather(pool.call(name, "soup"), pool.call(name, "stew"))

    first, second = asyncio.run(both())
    assert first == second == call(pool, "process_id", "soup") != os.getpid()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not on this system")
def test_processes_that_a_function_leaves_behind() -> None:
    with closing(FunctionPool()) as pool:
        assert [call(pool, "forks", answer) for answer in "abc"] == [1.0, 1.0, 1.0]
        assert call(pool, "leaves_a_server", "soup") == 1.0
        began = monotonic()
    assert monotonic() - began < 10


def test_error_names_the_line_of_the_function(pool: FunctionPool) -> None:
    with pytest.raises(FunctionFailed, match=r"KeyError: 'bread' \(.*:\d+ in gold\)") as error:
        call(pool, "gold", "bread")
    assert describe_error(error.value) == str(error.value)
    assert 'return {"soup": 1.0}[answer]' in error.value.__notes__[0]
    with pytest.raises(WorkerExit, match=r"SystemExit: 3 \(.*:\d+ in leaves\)"):
        call(pool, "leaves", "bread")
    with pytest.raises(RunFailed, match="must not exit"), exits_as_failures():
        call(pool, "leaves", "bread")
    with pytest.raises(WorkerEnded, match="ended with status 3: no room for it"):
        call(pool, "dies", "bread")
    assert call(pool, "gold", "soup") == 1.0


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("function", ["spins", "backtracks", "sleeps", "starts_another"])
def test_hanging_function_is_killed(pool: FunctionPool, function: str) -> None:
    async def cut() -> int:
        pid = int(await pool.call((FUNCTIONS, "process_id"), "soup"))
        async with TimeLimit(0.2):
            name_callee("rows:1: reward=slow")
            await pool.call((FUNCTIONS, function), "soup")
        return pid

    pid = call(pool, "process_id", "soup")
    with pytest.raises(TookTooLong, match=r"^rows:1: reward=slow took more than 0\.2 s$"):
        asyncio.run(cut())
    assert not is_alive(pid)


def test_limit_does_not_run_while_a_worker_starts(
    pool: FunctionPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_import.py").write_text("import time; time.sleep(1.5)\ndef one(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    async def start_and_call() -> Any:
        async with TimeLimit(1.0):
            return await pool.call(("slow_import", "one"))

    assert asyncio.run(start_and_call()) == 1


def test_reward_by_name_runs_in_a_process() -> None:
    def load(name: str) -> Any:
        stage = LoadTasks("dishes", reward=f"{FUNCTIONS}:{name}")
        return stage.run(FakeDatasets({"dishes": {"train": ROWS, "test": ROWS}}))[0]

    async def hang() -> None:
        async with TimeLimit(0.2):
            await late.train[0].env().step("soup")

    with closing(load("process_id")) as tasks:
        assert asyncio.run(tasks.train[0].env().step("soup")).reward != os.getpid()
    with (
        closing(load("spins")) as late,
        pytest.raises(
            TookTooLong,
            match=rf"^fake:dishes:train:0: reward={FUNCTIONS}:spins took more than 0\.2 s$",
        ),
    ):
        asyncio.run(hang())


ENDS_WITH_ITS_CALLER = f"""
import asyncio
from stages.tasks.function_workers import FunctionPool

async def hang():
    print(await pool.call(({FUNCTIONS!r}, "process_id"), ""), flush=True)
    await pool.call(({FUNCTIONS!r}, "backtracks"), "")

pool = FunctionPool()
asyncio.run(hang())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="not a recent Linux")
def test_worker_ends_with_a_killed_caller() -> None:
    command = [sys.executable, "-c", ENDS_WITH_ITS_CALLER]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        worker = os.pidfd_open(int(caller.stdout.readline()))
        caller.kill()
    ended, _, _ = select.select([worker], [], [], 60)
    os.close(worker)
    assert ended


@pytest.mark.parametrize(
    ("module", "found"), [(FUNCTIONS, True), ("json", True), ("__main__", False), ("sys", False)]
)
def test_modules_that_a_worker_can_import(module: str, found: bool) -> None:
    importlib.import_module(module)
    assert (folder_of(module) is not None) == found

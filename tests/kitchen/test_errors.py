"""Places in users' code, and errors that would end the process."""

from __future__ import annotations

import asyncio
import json
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kitchen.stage
from kitchen.errors import (
    DataError,
    RunFailed,
    describe_error,
    exits_as_failures,
    is_user_file,
    user_frame,
)


class Unplugged(BaseException):
    """Like SystemExit, not an Exception."""


def caught(call: Callable[..., Any], *arguments: Any) -> BaseException:
    try:
        call(*arguments)
    except BaseException as error:  # noqa: BLE001 it is the result
        return error
    raise AssertionError("nothing was raised")


def look_up() -> int:
    return {"silver": 1}["gold"]


def parse() -> Any:
    return json.loads("{")


def group() -> None:
    raise ExceptionGroup("two", [caught(look_up), ValueError()])  # type: ignore[list-item]


def bare_group() -> None:
    raise ExceptionGroup("two", [ValueError("salt (or none)"), KeyError()])


def wrap() -> None:
    try:
        look_up()
    except KeyError as error:
        raise OSError("no gold") from error


@pytest.mark.parametrize(
    "call, text, function",
    [
        (look_up, "KeyError: 'gold'", "look_up"),
        (parse, "JSONDecodeError: Expecting property name", "parse"),  # below is Python's library
        (group, "KeyError: 'gold'", "look_up"),
        (bare_group, "ValueError: salt (or none)", "bare_group"),
        (wrap, "OSError: no gold", "wrap"),
    ],
)
def test_error_has_the_frame_of_the_user(call: Callable[[], Any], text: str, function: str) -> None:
    described = describe_error(caught(call))
    assert described.startswith(text)
    assert "test_errors.py:" in described
    assert described.endswith(f" in {function})")


def test_our_own_error_and_one_without_a_text() -> None:
    assert describe_error(DataError("row 3: no answer")) == "row 3: no answer"
    assert describe_error(NotImplementedError()) == "NotImplementedError"
    assert user_frame(NotImplementedError()) == ""


def test_packages_and_our_modules_are_not_user_files() -> None:
    assert is_user_file(__file__)
    assert not is_user_file(kitchen.stage.__file__)
    assert not is_user_file(json.__file__)
    assert not is_user_file(str(Path(sysconfig.get_path("purelib")) / "numpy/core.py"))
    assert not is_user_file("<string>")


@pytest.mark.parametrize("error", [SystemExit(3), Unplugged("no power")])
def test_exit_becomes_a_failure(error: BaseException) -> None:
    with pytest.raises(RunFailed, match=type(error).__name__) as failure, exits_as_failures():
        raise error
    assert failure.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit(), OSError()])
def test_other_errors_stay(error: BaseException) -> None:
    with pytest.raises(type(error)), exits_as_failures():
        raise error


async def wait_for_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    with exits_as_failures():
        await task


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task
    task.cancel()
    with exits_as_failures():
        await asyncio.sleep(60)


def test_only_the_task_itself_is_cancelled() -> None:
    with pytest.raises(RunFailed, match="CancelledError"):
        asyncio.run(wait_for_cancelled())
    with pytest.raises(RunFailed, match="CancelledError"), exits_as_failures():
        raise asyncio.CancelledError
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_itself())


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


def test_error_without_a_text_is_described() -> None:
    text = "Mute (its text cannot be shown: LookupError)"
    assert describe_error(Mute()) == text
    assert text in describe_error(caught(raise_it, Mute()))


def raise_it(error: Exception) -> None:
    raise error

"""Calls of users' functions, in threads or in the event loop, and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kitchen.errors import RunFailed, describe_error
from stages.tasks.step_results import call_function


def first_of_none(answer: str) -> str:
    return next(word for word in answer.split() if word == "salt")


async def first_later(answer: str) -> str:
    return first_of_none(answer)


def late_judge(answer: str) -> float:
    raise TimeoutError("the judge did not answer")


def interrupt(answer: str) -> float:
    raise KeyboardInterrupt


def close(answer: str) -> float:
    raise GeneratorExit


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (first_of_none, RuntimeError, "raised StopIteration"),
        (first_later, RuntimeError, "raised StopIteration"),
        (late_judge, TimeoutError, "TimeoutError: the judge did not answer"),
        (interrupt, RunFailed, "KeyboardInterrupt"),
        (close, RunFailed, "GeneratorExit"),
    ],
)
def test_errors_arrive_with_the_frame_of_the_function(
    function: Callable[..., Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as failure:
        asyncio.run(asyncio.wait_for(call_function(function, "pepper"), 30))
    described = describe_error(failure.value)
    assert text in described
    assert "test_step_results.py:" in described

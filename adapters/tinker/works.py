"""Answers that come later, and may be given up before they do."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import Any, TypeVar

T = TypeVar("T")
Work = concurrent.futures.Future


def work() -> Work[Any]:
    """One that cannot be cancelled: who gives up waiting lets it go, and whoever works at it need
    not know.
    """
    answer: Work[Any] = concurrent.futures.Future()
    answer.set_running_or_notify_cancel()
    return answer


def give(answer: Work[T], value: T) -> None:
    """Unless it was given up."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        answer.set_result(value)


def fail(answer: Work[Any], error: BaseException) -> None:
    """Unless it is there already."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        answer.set_exception(error)

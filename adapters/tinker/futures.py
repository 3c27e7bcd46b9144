"""Futures that the adapter resolves itself, even if their caller has stopped waiting."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import Any, TypeVar

T = TypeVar("T")
ConcurrentFuture = concurrent.futures.Future


def new_future() -> ConcurrentFuture[Any]:
    """Return a future that cannot be cancelled.

    A caller that stops waiting drops it; the thread that computes the result is not affected.
    """
    future: ConcurrentFuture[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()
    return future


def set_result(future: ConcurrentFuture[T], value: T) -> None:
    """Resolve the future, unless it is done already."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        future.set_result(value)


def set_error(future: ConcurrentFuture[Any], error: BaseException) -> None:
    """Fail the future, unless it is done already."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        future.set_exception(error)

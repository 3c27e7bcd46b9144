"""Futures: results of submitted work, to be awaited or blocked on."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, runtime_checkable

from kitchen.errors import exits_as_failures

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Future(Protocol[T_co]):
    """The result of submitted work. Submitting never blocks, and errors surface here.

    The result can be taken any number of times.
    """

    def result(self, timeout: float | None = None) -> T_co:
        """Wait at most `timeout` seconds; raises TimeoutError, or the error of the work."""
        ...

    def __await__(self) -> Generator[Any, Any, T_co]: ...


def is_future(value: Any) -> TypeGuard[Future[Any]]:
    """Return whether a value is a Future.

    isinstance with a Protocol is so slow that it would show in every stage call.
    """
    return hasattr(value, "__await__") and hasattr(value, "result")


@dataclass(frozen=True)
class Done(Generic[T]):
    """A future that already has its value."""

    value: T

    def result(self, timeout: float | None = None) -> T:
        return self.value

    def __await__(self) -> Generator[Any, Any, T]:
        return self.value
        yield


@dataclass(frozen=True)
class Failed:
    """A future whose work has failed."""

    error: Exception

    def result(self, timeout: float | None = None) -> Any:
        raise self.error

    def __await__(self) -> Generator[Any, Any, Any]:
        raise self.error
        yield


@dataclass(frozen=True)
class Pending(Generic[T]):
    """A future of work on another thread."""

    work: concurrent.futures.Future[T]

    def result(self, timeout: float | None = None) -> T:
        return self.work.result(timeout)

    def __await__(self) -> Generator[Any, Any, T]:
        return asyncio.wrap_future(self.work).__await__()


@dataclass(frozen=True)
class Started(Generic[T]):
    """A coroutine that runs as a task; await it in the event loop that started it."""

    task: asyncio.Task[T]

    def result(self, timeout: float | None = None) -> T:
        return self.task.result()

    def __await__(self) -> Generator[Any, Any, T]:
        return self.task.__await__()


def start(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine as a task and return its future at once."""
    task = asyncio.ensure_future(_without_exits(work))
    # a run that fails first never awaits it
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return Started(task)


async def _without_exits(work: Coroutine[Any, Any, T]) -> T:
    with exits_as_failures():
        return await work


async def arrival(future: Future[T]) -> T:
    """Await a future as a coroutine, for asyncio.gather."""
    return await future

"""A ticket for work in flight: await it, or block on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, runtime_checkable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Future(Protocol[T_co]):
    """Work that was submitted; submitting never blocks, and errors surface here. Asked twice, it
    answers twice.
    """

    def result(self, timeout: float | None = None) -> T_co:
        """Wait at most `timeout` seconds; raises TimeoutError, or what went wrong."""
        ...

    def __await__(self) -> Generator[Any, Any, T_co]: ...


def is_future(value: Any) -> TypeGuard[Future[Any]]:
    """What isinstance would say, which is so slow with a Protocol that calls of stages would feel
    it.
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
    """A future that came back with an error: errors surface here, never on the call."""

    error: Exception

    def result(self, timeout: float | None = None) -> Any:
        raise self.error

    def __await__(self) -> Generator[Any, Any, Any]:
        raise self.error
        yield


@dataclass(frozen=True)
class Pending(Generic[T]):
    """Work on another thread."""

    work: concurrent.futures.Future[T]

    def result(self, timeout: float | None = None) -> T:
        return self.work.result(timeout)

    def __await__(self) -> Generator[Any, Any, T]:
        return asyncio.wrap_future(self.work).__await__()


@dataclass(frozen=True)
class Started(Generic[T]):
    """A coroutine that runs while others wait; to be awaited where it was started."""

    task: asyncio.Task[T]

    def result(self, timeout: float | None = None) -> T:
        return self.task.result()

    def __await__(self) -> Generator[Any, Any, T]:
        return self.task.__await__()


def start(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Set a coroutine going and come back at once with the ticket for it."""
    task = asyncio.ensure_future(work)
    # a run that fails first never asks
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return Started(task)


async def arrival(future: Future[T]) -> T:
    """A future as a coroutine, for asyncio.gather."""
    return await future

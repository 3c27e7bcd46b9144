"""Futures of requests, which can be cancelled."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class RequestFuture(Generic[T]):
    """The result of a request on the thread of a connection.

    A caller that stops waiting does not cancel the request, whose answer may be paid for; only
    `cancel` does.
    """

    work: concurrent.futures.Future[T]
    stop: Callable[[], object]

    def result(self, timeout: float | None = None) -> T:
        return self.work.result(timeout)

    def __await__(self) -> Generator[Any, Any, T]:
        return asyncio.wrap_future(self.work).__await__()

    def cancel(self) -> None:
        """Give the request up; its result is then a RunFailed, unless it has arrived."""
        self.stop()

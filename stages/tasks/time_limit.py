"""Time limits of calls of users' code, which do not run while a worker process starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType

from kitchen.errors import RunFailed


class TookTooLong(RunFailed):
    """A call that took longer than its time limit."""


class TimeLimit:
    """An asynchronous context manager that raises TookTooLong, with the name of what was called."""

    def __init__(self, seconds: float, setting: str = "") -> None:
        self.seconds = seconds
        self.setting = setting  # that sets the limit
        self.callee = "the environment"
        self._timeout = asyncio.timeout(None)
        self._token: Token[TimeLimit | None] | None = None

    async def __aenter__(self) -> TimeLimit:
        await self._timeout.__aenter__()
        self._timeout.reschedule(_now() + self.seconds)
        self._token = _CURRENT.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._token is not None:
            _CURRENT.reset(self._token)
        source = f" ({self.setting})" if self.setting else ""
        late = f"{self.callee} took more than {self.seconds:g} s{source}"
        deadline = self._timeout.when()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as timeout:
            raise TookTooLong(late) from timeout
        if kind is None and deadline is not None and _now() > deadline:
            raise TookTooLong(f"{late}, and blocked the others")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no time pass in the block."""
        deadline = self._timeout.when()
        if deadline is None or self._timeout.expired():
            yield
            return
        left = deadline - _now()
        self._timeout.reschedule(None)
        try:
            yield
        finally:
            if not self._timeout.expired():
                self._timeout.reschedule(_now() + left)


_CURRENT: ContextVar[TimeLimit | None] = ContextVar("time limit of the current call", default=None)


def name_callee(callee: str) -> None:
    """Name what the current call waits for from now on, if it has a time limit."""
    if (limit := _CURRENT.get()) is not None:
        limit.callee = callee


@contextmanager
def paused_limit() -> Iterator[None]:
    """Pause the time limit of the current call in the block, if it has one."""
    limit = _CURRENT.get()
    if limit is None:
        yield
        return
    with limit.paused():
        yield


def _now() -> float:
    return asyncio.get_running_loop().time()

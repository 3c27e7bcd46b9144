"""Requests that are sent again after faults, and held back for as long as a server asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from adapters.openai.errors import Fault, fault_of
from adapters.openai.hold_back import HoldBack
from kitchen.backend.port_call import PortCall
from kitchen.errors import ApiError, KitchenError

T = TypeVar("T")
log = structlog.get_logger("kitchen.openai")
MAX_BACKOFF = 30.0  # seconds between two tries
REPORT_INTERVAL = 30.0  # seconds between two warnings
MAX_SHOWN = 10_000_000  # seconds in an error


@dataclass(frozen=True)
class Limits:
    """Limits on requests, and on the time that they may take."""

    concurrency: int = 32  # requests under way at the same time
    timeout: float = 300.0  # seconds for an answer
    retries: int = 6  # after faults, but for refusals for now
    backoff: float = 0.5  # seconds before the first retry, doubled each time
    patience: float = 600.0  # seconds that refusals for now may hold a request back


class Retries:
    """The retries of all requests with one address and key, which hold back together."""

    def __init__(self, limits: Limits, server: Callable[[], str], key_variable: str) -> None:
        self.hold_back = HoldBack(limits.backoff)
        self._limits = limits
        self._server = server
        self._key_variable = key_variable
        self._reported_at = -REPORT_INTERVAL

    async def result(
        self,
        send: Callable[[], Awaitable[T]],
        call: PortCall | None = None,
        check_wanted: Callable[[], object] = lambda: None,
    ) -> T:
        """Return the result of a request, sent again while that is worth it; raises KitchenError.

        Refusals for now (status 429) are waited out for up to `patience` seconds; other faults
        that may pass are tried `retries` times. `check_wanted` raises if nobody waits any more.
        """
        limits = self._limits
        tries, held_back = 0, 0.0
        while True:
            held_back += await self.hold_back.wait()
            check_wanted()
            try:
                async with asyncio.timeout(limits.timeout):
                    result = await send()
            except Exception as error:
                fault = fault_of(error, self._server(), self._key_variable)
                if fault is None:
                    raise
                _count(call, fault.status, retried=fault.transient)
                if fault.is_limit or (fault.transient and tries < limits.retries):
                    self._report(fault)
                if fault.is_limit:
                    self.hold_back.refuse(fault.retry_after)
                    self._check_patience(fault, held_back)
                    check_wanted()
                    continue
                if not fault.transient or tries == limits.retries:
                    raise _after(fault.error, tries) from error
                check_wanted()
            else:
                self.hold_back.accept()
                _count(call, 200)
                return result
            await asyncio.sleep(min(limits.backoff * 2**tries, MAX_BACKOFF))
            tries += 1

    def _report(self, fault: Fault) -> None:
        """Warn of requests that are sent again, at most once in a while."""
        now = time.monotonic()
        if now - self._reported_at >= REPORT_INTERVAL:
            self._reported_at = now
            log.warning("a request failed, and is sent again", reason=str(fault.error))

    def _check_patience(self, fault: Fault, held_back: float) -> None:
        """Raise the error of a refusal if the server asks for more time than it gets."""
        seconds = held_back + self.hold_back.seconds
        if seconds > self._limits.patience:
            shown = f"{seconds:.0f} s" if seconds < MAX_SHOWN else f"more than {MAX_SHOWN} s"
            raise ApiError(
                f"{fault.error}; it holds this request back for {shown}, and "
                f"sampling.patience is {self._limits.patience:g} s",
                status=fault.status or 429,
            )


def _count(call: PortCall | None, status: int | None, *, retried: bool = False) -> None:
    if call is None:
        return
    if status is None:
        call.retries += retried
    else:
        call.add_response(status, retried=retried)


def _after(error: KitchenError, tries: int) -> KitchenError:
    """Return an error with the number of tries."""
    if not tries:
        return error
    text = f"{error} (after {tries + 1} tries)"
    if isinstance(error, ApiError):
        return ApiError(text, status=error.status, body=error.body)
    return type(error)(text)

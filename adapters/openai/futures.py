"""Futures of requests, which can be cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from kitchen.backend.hedging.race import Cancellable

T = TypeVar("T")


@dataclass(frozen=True)
class RequestFuture(Cancellable[T]):
    """The result of a request on the thread of a connection.

    A caller that stops waiting does not cancel the request, whose answer may be paid for; only
    `cancel` does. Its result is then a RunFailed, unless it has arrived.
    """

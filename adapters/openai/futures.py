"""Futures of requests, which can be cancelled."""

from __future__ import annotations

import threading
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

    sent: threading.Event  # set when the cache does not have an answer

    @property
    def was_sent(self) -> bool:
        """False as long as the server was not asked for an answer, for hedging."""
        return self.sent.is_set()

"""Log when a server queues the requests of a run."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from tinker.lib.api_future_impl import QueueState, QueueStateObserver

log = structlog.get_logger("kitchen.tinker")
_REASONS = {
    QueueState.PAUSED_RATE_LIMIT: "the rate limit of this API key is reached",
    QueueState.PAUSED_CAPACITY: "it has no capacity at the moment",
    QueueState.UNKNOWN: "it does not say why",
}


class QueueStateLogger(QueueStateObserver):
    """Warns once when requests are queued and once when they proceed, in the log of its run.

    Requests overtake each other, so some are queued while others proceed: a state is reported at
    most once in `min_interval` seconds.
    """

    def __init__(
        self,
        source: str,
        min_interval: float = 60.0,
        on_queued: Callable[[], object] = lambda: None,
    ) -> None:
        """Create a logger for the run of the caller; `source` names the waiting client.

        `on_queued` is called each time that the server says that a request is queued.
        """
        self._on_queued = on_queued
        self._source = source
        self._min_interval = min_interval
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._is_queued = False
        self._quiet_until = time.monotonic()

    def on_queue_state_change(
        self, queue_state: QueueState, queue_state_reason: str | None
    ) -> None:
        is_queued = queue_state != QueueState.ACTIVE
        if is_queued:
            self._on_queued()
        with self._lock:
            is_due = self._is_queued or time.monotonic() >= self._quiet_until
            changed = is_queued != self._is_queued and is_due
            if changed:
                self._is_queued = is_queued
                self._quiet_until = time.monotonic() + self._min_interval
        if changed and is_queued:
            reason = queue_state_reason or _REASONS.get(queue_state, str(queue_state))
            self._warn(
                "the server holds requests; the run continues when it lets them through",
                why=reason,
            )
        elif changed:
            self._warn("the server lets requests through again")

    def attach(self, client: Any) -> Any:
        """Make the SDK's client report here at once; it would log only after 15 minutes."""
        if hasattr(client, "_queue_state_logger"):  # a training client
            client._queue_state_logger = self
        else:
            client.on_queue_state_change = self.on_queue_state_change
        return client

    def _warn(self, message: str, **fields: str) -> None:
        self._context.copy().run(log.warning, message, of=self._source, **fields)

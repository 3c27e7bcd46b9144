"""What a server says of a queue that requests stand in, told to the run that waits."""

from __future__ import annotations

import contextvars
import threading
import time
from typing import Any

import structlog
from tinker.lib.api_future_impl import QueueState, QueueStateObserver

log = structlog.get_logger("kitchen.tinker")
_WHY = {
    QueueState.PAUSED_RATE_LIMIT: "more is asked at once than this key may",
    QueueState.PAUSED_CAPACITY: "it has no capacity at the moment",
    QueueState.UNKNOWN: "it does not say why",
}
CALM = 60.0  # seconds


class Waiting(QueueStateObserver):
    """Tells once when requests are held, and once when they go on, in the log of the run that made
    it.

    Requests overtake each other, so that some are held while others go on: it tells of that once in
    a while.
    """

    def __init__(self, what: str) -> None:
        self._what, self._run = what, contextvars.copy_context()
        self._lock, self._held, self._calm_at = threading.Lock(), False, time.monotonic()

    def on_queue_state_change(
        self, queue_state: QueueState, queue_state_reason: str | None
    ) -> None:
        held = queue_state != QueueState.ACTIVE
        with self._lock:
            changed = held != self._held and (self._held or time.monotonic() >= self._calm_at)
            if changed:
                self._held, self._calm_at = held, time.monotonic() + CALM
        if changed and held:
            self._run.copy().run(
                log.warning,
                "the server holds requests; the run goes on when it lets them through",
                of=self._what,
                why=queue_state_reason or _WHY.get(queue_state, str(queue_state)),
            )
        elif changed:
            self._run.copy().run(
                log.warning, "the server lets requests through again", of=self._what
            )

    def over(self, client: Any) -> Any:
        """The SDK's client, which tells here what it would log after a quarter of an hour."""
        if hasattr(client, "_queue_state_logger"):  # of training
            client._queue_state_logger = self
        else:
            client.on_queue_state_change = self.on_queue_state_change
        return client

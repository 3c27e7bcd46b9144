"""Requests that a server queues are reported in the log."""

from __future__ import annotations

import pytest

pytest.importorskip("tinker")

from structlog.testing import capture_logs
from tinker.lib.api_future_impl import QueueState

from adapters.tinker.queue_state import QueueStateLogger

PAUSED, ACTIVE = QueueState.PAUSED_CAPACITY, QueueState.ACTIVE


@pytest.mark.parametrize("min_interval, reports", [(60.0, 1), (0.0, 2)])
def test_state_is_reported_once_per_interval(min_interval: float, reports: int) -> None:
    """However many requests overtake those that are queued."""
    logger = QueueStateLogger("training a model", min_interval)
    with capture_logs() as entries:
        for state in (ACTIVE, PAUSED, PAUSED, ACTIVE, PAUSED, ACTIVE, ACTIVE):
            logger.on_queue_state_change(state, None)
    assert [entry["event"].split(";")[0] for entry in entries] == reports * [
        "the server holds requests",
        "the server lets requests through again",
    ]

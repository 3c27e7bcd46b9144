"""Requests that a server holds."""

from __future__ import annotations

import pytest

pytest.importorskip("tinker")

from structlog.testing import capture_logs
from tinker.lib.api_future_impl import QueueState

from adapters.tinker import waiting
from adapters.tinker.waiting import Waiting

HELD, GOES = QueueState.PAUSED_CAPACITY, QueueState.ACTIVE


@pytest.mark.parametrize("calm, times", [(60.0, 1), (0.0, 2)])
def test_it_is_told_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, calm: float, times: int
) -> None:
    """However many requests overtake those that are held."""
    monkeypatch.setattr(waiting, "CALM", calm)
    heard = Waiting("training a model")
    with capture_logs() as told:
        for state in (GOES, HELD, HELD, GOES, HELD, GOES, GOES):
            heard.on_queue_state_change(state, None)
    assert [entry["event"].split(";")[0] for entry in told] == times * [
        "the server holds requests",
        "the server lets requests through again",
    ]

"""Ctrl-C and logs work as in a command; and a reward that a model comes upon by chance."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from kitchen.runs.logs import configure
from tests.support.letters import use

# who starts pytest in the background of a script hands it an ignored SIGINT, and it would hand it
# on
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)  # a busy machine fails no test
settings.load_profile("untimed")
configure()  # else the first `capture_logs` leaves behind that somebody else has done so


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the reward `letters` for this test."""
    use(monkeypatch.setattr)

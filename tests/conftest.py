"""Settings of all tests: signals, logs and hypothesis; and a reward that random answers earn."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from kitchen.backend.logs import configure
from tests.support.letters import registered

# a script that starts pytest in the background makes it ignore SIGINT, as its child processes would
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("untimed", deadline=None)  # a busy machine fails no test
settings.load_profile("untimed")
configure()  # before any `capture_logs`, which would restore an unconfigured structlog


@pytest.fixture
def letters() -> Iterator[None]:
    """Register the reward `letters` for this test."""
    with registered():
        yield

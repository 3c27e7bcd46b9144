"""Ctrl-C works in what the tests start; and a reward that a model comes upon by chance."""

from __future__ import annotations

import signal

import pytest

from stages import tasks
from tests.recipes.letters import REWARDS

# who starts pytest in the background of a script hands it an ignored SIGINT, and it would hand it on
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """`reward="letters"` can be said."""
    monkeypatch.setattr(tasks, "REWARDS", REWARDS)

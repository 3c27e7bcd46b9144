"""Ctrl-C works in what the tests start; and a reward that a model comes upon by chance."""

from __future__ import annotations

import signal

import pytest

from kitchen.ports.environments import Turn
from stages import tasks

# who starts pytest in the background of a script hands it an ignored SIGINT, and it would hand it on
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """`reward="letters"`: how many of the first three letters of an answer are in the right one, 0..1."""
    def share(answer: str, right: str) -> Turn:
        return Turn(sum(letter in right for letter in answer[:3]) / 3)

    monkeypatch.setattr(tasks, "REWARDS", {**tasks.REWARDS, "letters": share})

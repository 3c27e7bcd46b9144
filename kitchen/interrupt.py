"""Ctrl-C: the first one lets a loop with save points finish its iteration and save; the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import structlog

log = structlog.get_logger("kitchen.interrupt")


@dataclass
class Brake:
    """Whether someone asked the run to stop, and whether it can do so in good order."""

    asked: bool = False
    patient: int = 0  # loops with save points that are in the middle of an iteration

    @contextmanager
    def iteration(self, saving: bool) -> Iterator[None]:
        self.patient += saving
        try:
            yield
        finally:
            self.patient -= saving

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch SIGINT and SIGTERM while a run is under way; only the main thread of a process can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            signal.signal(number, self._pressed)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.patient:
            raise KeyboardInterrupt
        self.asked = True
        log.warning("stopping: this step is finished and saved first; Ctrl-C again stops at once")

"""A stop that is asked for: a loop with save points finishes its iteration and saves first; asked
twice, at once.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from kitchen.errors import ConfigError, Interrupted

log = structlog.get_logger("kitchen.engine.stop")


@dataclass
class StopSignal:
    """Whether someone asked the run to stop, and whether it can do so in good order."""

    asked: bool = False
    at_once: bool = False  # nothing is finished and saved first
    patient: int = 0  # loops with save points that are in the middle of an iteration
    _wake: Callable[[], object] | None = None  # the task of the run, if it waits for something
    # again in the same thread: a signal may come at any moment
    _lock: Any = field(default_factory=threading.RLock)

    def ask(self, *, at_once: bool = False) -> None:
        """Stop, from any thread: what is waited for in the middle of an iteration with save points
        is waited for.
        """
        with self._lock:
            self.asked, self.at_once = True, self.at_once or at_once
            if self._wake is not None:
                self._wake()

    def press(self, later: Callable[..., object]) -> None:
        """Ctrl-C in the thread of the run itself, which may stand anywhere: it may be writing an
        entry of the log.
        """
        if self.asked or not self.patient:
            raise KeyboardInterrupt
        self.asked = True
        later(
            log.warning,
            "stopping: this step is finished and saved first; Ctrl-C again stops at once",
        )

    def check(self, stage: str) -> None:
        """Before a stage: raises Interrupted if nothing is to be finished first."""
        if self._due():
            raise Interrupted(f"stopped before {stage}")

    @contextmanager
    def iteration(self, saving: bool) -> Iterator[None]:
        self.patient += saving
        try:
            yield
        finally:
            self.patient -= saving

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While the task of a run is under way, heed signals and other threads."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self._wake = lambda: loop.call_soon_threadsafe(
            lambda: task and self._due() and task.cancel()
        )
        try:
            with at_signals(lambda: self.press(loop.call_soon_threadsafe)):
                yield
        except asyncio.CancelledError:
            if not self.asked:
                raise
            raise Interrupted(
                "stopped in the middle of a stage: what it waited for is let go"
            ) from None
        finally:
            with self._lock:
                self._wake = None

    def _due(self) -> bool:
        return self.asked and (self.at_once or not self.patient)


@contextmanager
def at_signals(press: Callable[[], None]) -> Iterator[None]:
    """Have SIGINT and SIGTERM call it while the block lasts; only the main thread of a process can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: press())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_loop() -> None:
    """Raises ConfigError in a running event loop, which would stand still for as long as a run
    takes.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "an event loop is running here, as in a notebook, and a run has one of its own: call "
        "kitchen.run "
        "or kitchen.submit, which cook on another thread"
    )

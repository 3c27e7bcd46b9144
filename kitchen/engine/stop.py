"""Graceful stop: an iteration is finished and saved first; a second request stops at once."""

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
    """A request to stop a run, and the iterations that must finish and save before it does."""

    requested: bool = False
    at_once: bool = False  # stop without finishing or saving anything
    unsaved: int = 0  # loops with save points that are in the middle of an iteration
    _wake: Callable[[], object] | None = None  # wakes the run's task if it waits for something
    # reentrant, because a signal handler may run while the same thread holds it
    _lock: Any = field(default_factory=threading.RLock)

    def request(self, *, at_once: bool = False) -> None:
        """Ask the run to stop, from any thread; an iteration with save points finishes first."""
        with self._lock:
            self.requested = True
            self.at_once = self.at_once or at_once
            if self._wake is not None:
                self._wake()

    def on_sigint(self, later: Callable[..., object]) -> None:
        """Handle Ctrl-C in the run's own thread, which may be in the middle of a log entry.

        `later` schedules a call for when the event loop is free. A second Ctrl-C, or one with
        nothing to save, raises KeyboardInterrupt.
        """
        if self.requested or not self.unsaved:
            self.requested = False  # the event loop cancels the task: not to be reported as ours
            raise KeyboardInterrupt
        self.requested = True
        later(
            log.warning,
            "stopping after this step is finished and saved; Ctrl-C again stops at once",
        )

    def check(self, stage: str) -> None:
        """Raise Interrupted if a stop was requested and no iteration must finish first."""
        if self._due():
            raise Interrupted(f"stopped before {stage}")

    @contextmanager
    def iteration(self, has_save_points: bool) -> Iterator[None]:
        """Mark an iteration, which is finished before a stop if its loop has save points."""
        self.unsaved += has_save_points
        try:
            yield
        finally:
            self.unsaved -= has_save_points

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals and requests of other threads while the current task runs."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()

        def cancel_if_due() -> None:
            if task and self._due():
                task.cancel()

        self._wake = lambda: loop.call_soon_threadsafe(cancel_if_due)
        try:
            with handling_signals(lambda: self.on_sigint(loop.call_soon_threadsafe)):
                yield
        except asyncio.CancelledError:
            if not self.requested:
                raise
            raise Interrupted(
                "stopped in the middle of a stage; the result that it waited for is abandoned"
            ) from None
        finally:
            with self._lock:
                self._wake = None

    def _due(self) -> bool:
        return self.requested and (self.at_once or not self.unsaved)


@contextmanager
def handling_signals(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` on SIGINT, SIGTERM and SIGHUP in the block; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if (hangup := getattr(signal, "SIGHUP", None)) and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.append(hangup)  # ignored under nohup; Windows has none
    before = {number: signal.getsignal(number) for number in numbers}
    for number in before:
        signal.signal(number, lambda *_: handler())
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def refuse_running_loop() -> None:
    """Raise ConfigError inside a running event loop, which a run would block until it ends."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "an event loop is running here, as in a notebook, and a run needs one for itself: "
        "call kitchen.run or kitchen.submit, which use another thread"
    )

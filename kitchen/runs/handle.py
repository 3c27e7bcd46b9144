"""A run under way: on a thread of its own, and asked, listened to, waited for and stopped from any
other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import structlog

from kitchen.engine.observers import Observer
from kitchen.engine.stop import StopSignal, at_signals
from kitchen.errors import ConfigError, Interrupted, KitchenError, RunFailed
from kitchen.ports.blobs import BlobStore
from kitchen.runs.lock import InUse
from kitchen.runs.record import OtherMachine
from kitchen.runs.status import Listener, RunStatus, Status
from kitchen.runs.store import read_journal, run_summary
from kitchen.secrets import mask
from kitchen.types import Checkpoint

log = structlog.get_logger("kitchen.runs.handle")
# seconds that the end of the process waits for a run: to save, to stop at once
_SAVING, _LEAVING = 60.0, 5.0
_LOOK = 0.1  # seconds from one look at whether the process is ending to the next

E = TypeVar("E", bound=BaseException)
R = TypeVar("R")
P = ParamSpec("P")
Cook = Callable[[StopSignal, Observer], object]  # from the first stage to the last


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    run: str
    loss: float | None  # the last that was published
    seconds: float  # over all attempts
    metrics: Mapping[str, float]  # the last of each
    checkpoint: Checkpoint | None  # the weights exported last, a blob of the run's store
    where: str  # the run's folder


class Run:
    """A run under way, in a thread and an event loop of its own; it can be asked from anywhere.

    `await run` is `run.result()` for those who are in an event loop themselves, as notebooks are.
    """

    def __init__(
        self,
        name: str,
        recipe: str,
        blobs: BlobStore,
        cook: Cook,
        *,
        again: str,
        on_progress: Listener | None,
        earlier: Mapping[str, float],
    ) -> None:
        self.id = name
        # how to go on with it, in Python; empty where nobody can
        self._blobs, self._again = blobs, again
        self._stop_signal, self._standing = (
            StopSignal(),
            RunStatus(name, recipe, on_progress, earlier),
        )
        self._pressed = False  # Ctrl-C while it was waited for, which is not every `cancel`
        self._answer: concurrent.futures.Future[Outcome] = concurrent.futures.Future()
        # so that who gives up waiting for it does not cancel it
        self._answer.set_running_or_notify_cancel()
        here = contextvars.copy_context()  # so that spans nest in those of the caller
        self._thread = threading.Thread(
            target=here.run, args=(self._go, cook), name=f"run {name}", daemon=True
        )
        self._thread.start()
        threading.Thread(target=self._see_out, name=f"end of run {name}", daemon=False).start()

    def __repr__(self) -> str:
        now = self.status()
        return f"<run {self.id}: {now.state}, step {now.step}, loss {now.loss}>"

    def __await__(self) -> Generator[Any, Any, Outcome]:
        return asyncio.wrap_future(self._answer).__await__()

    def status(self) -> Status:
        return self._standing.status

    def on_progress(self, listener: Listener) -> None:
        """Call it with every event, on the run's thread; one that raises fails the run.

        Who comes late is told at once, on the thread that asks, that the run has started and, if
        so, that it is complete; not what was between.
        """
        self._standing.listen(listener)

    def done(self) -> bool:
        """Whether it is over, in whichever state."""
        return self._answer.done()

    def cancel(self, *, at_once: bool = False) -> None:
        """Ask it to stop, and come back: a loop with save points finishes its iteration and saves,
        unless `at_once`.

        Elsewhere it stops at the next stage, or lets go of the answer that it waits for.
        """
        self._stop_signal.ask(at_once=at_once)

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait until it is over, at most `timeout` seconds. Ctrl-C ends the waiting, not the run.

        Raises TimeoutError, and the run goes on; else the KitchenError that it failed with:
        Interrupted if it was stopped, RunFailed for an error of another kind, which is its cause.
        """
        if threading.current_thread() is self._thread:
            raise ConfigError(
                f"run {self.id!r} would wait for itself: ask for its result in another thread"
            )
        if not concurrent.futures.wait([self._answer], timeout).done:
            raise TimeoutError(
                f"run {self.id!r} is not over after {timeout} s, and goes on: wait again, or "
                "cancel it"
            )
        return self._answer.result()

    def finish(self) -> Outcome:
        """Wait as the command line does: Ctrl-C saves where it can, then raises KeyboardInterrupt;
        again, at once.
        """
        try:
            with at_signals(self._press):
                outcome = self.result()
        except Interrupted as stopped:
            if not self._pressed:
                raise
            raise KeyboardInterrupt("; ".join([str(stopped), *stopped.__notes__])) from stopped
        except KeyboardInterrupt:
            self.cancel(at_once=True)
            raise
        if self._pressed:
            raise KeyboardInterrupt(f"run {self.id!r} was complete before it could be stopped")
        return outcome

    def _press(self) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True
        self.cancel()
        log.warning(
            "stopping: what can be saved is saved first; Ctrl-C again stops at once", run=self.id
        )

    def _go(self, cook: Cook) -> None:
        try:
            cook(self._stop_signal, self._standing)
            outcome = _outcome(self._blobs, self.id)
        except BaseException as error:  # noqa: BLE001 it surfaces on the result
            self._standing.over("interrupted" if isinstance(error, Interrupted) else "failed")
            self._answer.set_exception(self._explained(error))
        else:
            self._standing.over("completed")
            self._answer.set_result(outcome)

    def _explained(self, error: BaseException) -> KitchenError:
        explained = (
            error
            if isinstance(error, KitchenError)
            else RunFailed(f"{type(error).__name__}: {error}")
        )
        if explained is not error:
            explained.__cause__, explained.__notes__ = (
                with_secrets_masked(error),
                list(getattr(error, "__notes__", ())),
            )
        if self._again and isinstance(error, InUse | OtherMachine):
            explained.add_note(
                f"to go on all the same: {self._again.removesuffix(')')}, {error.option}=True)"
            )
        elif self._again and self._standing.started and not isinstance(error, ConfigError):
            explained.add_note(f"to go on: {self._again}")
        return with_secrets_masked(explained)

    def _see_out(self) -> None:
        """Save if the process ends before the run. This thread is no daemon, so the end waits for
        it, and no longer.
        """
        while self._thread.is_alive() and threading.main_thread().is_alive():
            self._thread.join(_LOOK)
        if self._thread.is_alive():
            log.warning(
                "the process ends before the run: what can be saved is saved first", run=self.id
            )
            self.cancel()
            self._thread.join(_LEAVING if self._stop_signal.at_once else _SAVING)


def masks_secrets(call: Callable[P, R]) -> Callable[P, R]:
    """The same function, whose errors are masked."""

    @wraps(call)
    def masking(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return call(*arguments, **named)
        except KitchenError as error:
            for each in (error, *getattr(error, "found", ())):
                with_secrets_masked(each)
            raise

    return masking


def with_secrets_masked(error: E) -> E:
    """The same error with its texts masked: a traceback that a notebook keeps must show no secret."""
    error.args = tuple(mask(each) if isinstance(each, str) else each for each in error.args)
    if hasattr(error, "__notes__"):
        error.__notes__ = [mask(note) for note in error.__notes__]
    return error


def _outcome(blobs: BlobStore, run: str) -> Outcome:
    found, exported = run_summary(blobs, run), read_journal(blobs, run, "checkpoints")
    keys = ("path", "step", "kind", "sha256")
    checkpoint = Checkpoint(**{key: exported[-1][key] for key in keys}) if exported else None
    where = blobs.locate(f"{run}/run.json").removesuffix("/run.json")
    return Outcome(run, found.metrics.get("loss"), found.seconds, found.metrics, checkpoint, where)

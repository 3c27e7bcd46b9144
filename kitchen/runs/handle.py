"""Handles of runs, each on its own thread: query, follow, await and cancel them from others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Generator, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import structlog

from kitchen.engine.observers import Observer
from kitchen.engine.stop import StopSignal, handling_signals
from kitchen.errors import (
    ConfigError,
    Interrupted,
    KitchenError,
    RunFailed,
    describe_error,
)
from kitchen.runs.code import OtherCode
from kitchen.runs.lock import InUse
from kitchen.runs.outcome import Outcome, RunAccess, read_outcome
from kitchen.runs.record import LostRows, OtherMachine
from kitchen.runs.resumable import resuming_can_help
from kitchen.runs.status import Listener, RunStatus, Status
from kitchen.secrets import mask

log = structlog.get_logger("kitchen.runs.handle")
# seconds that the end of the process waits for a run
_SAVE_TIMEOUT = 60.0  # to save and stop
_STOP_TIMEOUT = 5.0  # to stop at once
_POLL_INTERVAL = 0.1  # seconds between checks whether the process is ending

E = TypeVar("E", bound=BaseException)
R = TypeVar("R")
P = ParamSpec("P")
Target = Callable[[StopSignal, Observer], object]  # executes a run from start to end


class Run:
    """A run on its own thread and event loop, usable from any other thread.

    `await run` is `run.result()` for code in an event loop, such as a notebook.
    """

    id: str  # name of the run
    headline: tuple[str, ...]  # names of the metrics that show best how the run goes

    def __init__(
        self,
        name: str,
        recipe: str,
        access: RunAccess,
        target: Target,
        *,
        resume_call: str,
        on_progress: Listener | None,
        earlier_metrics: Mapping[str, float],
    ) -> None:
        self.id = name
        self._access = access
        self.headline = access.headline
        self._resume_call = resume_call  # in Python; empty if the run cannot be resumed
        self._stop_signal = StopSignal()
        self._status = RunStatus(name, recipe, on_progress, earlier_metrics)
        self._sigint_received = False  # while `finish` waited; `cancel` does not set it
        self._future: concurrent.futures.Future[Outcome] = concurrent.futures.Future()
        # so that a caller who stops waiting for it does not cancel it
        self._future.set_running_or_notify_cancel()
        context = contextvars.copy_context()  # so that spans nest in those of the caller
        self._thread = threading.Thread(
            target=context.run, args=(self._execute, target), name=f"run {name}", daemon=True
        )
        self._thread.start()
        threading.Thread(target=self._save_on_exit, name=f"end of run {name}", daemon=False).start()

    def __repr__(self) -> str:
        status = self.status()
        return f"<run {self.id}: {status.state}, step {status.step}, loss {status.loss}>"

    def __await__(self) -> Generator[Any, Any, Outcome]:
        return asyncio.wrap_future(self._future).__await__()

    def status(self) -> Status:
        """Return the state and progress of the run at this moment."""
        return self._status.status

    def on_progress(self, listener: Listener) -> None:
        """Call the listener with every event, on the run's thread; one that raises fails the run.

        A listener added late is called at once, on the caller's thread, with the start event and,
        if the run is completed, the completion event, but not with those in between.
        """
        self._status.listen(listener)

    def done(self) -> bool:
        """Return whether the run is over, in whichever state."""
        return self._future.done()

    def cancel(self, *, at_once: bool = False) -> None:
        """Ask the run to stop, and return at once.

        A loop with save points finishes its iteration and saves, unless `at_once`. Elsewhere the
        run stops before the next stage, or abandons the future that it waits for.
        """
        self._stop_signal.request(at_once=at_once)

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait until the run is over, at most `timeout` seconds. Ctrl-C ends the wait, not the run.

        Raises TimeoutError while the run continues, else the KitchenError that it failed with:
        Interrupted if it was stopped, RunFailed for an error of another kind, which is its cause.
        """
        if threading.current_thread() is self._thread:
            raise ConfigError(
                f"run {self.id!r} would wait for itself: call result() on another thread"
            )
        if not concurrent.futures.wait([self._future], timeout).done:
            raise TimeoutError(
                f"run {self.id!r} is not over after {timeout} s, and continues: wait again, or "
                "cancel it"
            )
        return self._future.result()

    def finish(self) -> Outcome:
        """Wait as the command line does: Ctrl-C saves where possible and raises KeyboardInterrupt.

        A second Ctrl-C stops at once.
        """
        try:
            with handling_signals(self._on_sigint):
                outcome = self.result()
        except Interrupted as stopped:
            if not self._sigint_received:
                raise
            raise KeyboardInterrupt("; ".join([str(stopped), *stopped.__notes__])) from stopped
        except KeyboardInterrupt:
            self.cancel(at_once=True)
            raise
        if self._sigint_received:
            raise KeyboardInterrupt(f"run {self.id!r} was complete before it could be stopped")
        return outcome

    def _on_sigint(self) -> None:
        if self._sigint_received:
            raise KeyboardInterrupt
        self._sigint_received = True
        self.cancel()
        log.warning(
            "stopping, after saving if the recipe has save points; Ctrl-C again stops at once",
            run=self.id,
        )

    def _execute(self, target: Target) -> None:
        """Execute the run on this thread, and resolve the future with its outcome or error."""
        try:
            target(self._stop_signal, self._status)
            outcome = read_outcome(self._access, self.id)
        except BaseException as error:  # noqa: BLE001 it is raised by `result`
            self._status.finish("interrupted" if isinstance(error, Interrupted) else "failed")
            self._future.set_exception(self._to_kitchen_error(error))
        else:
            self._status.finish("completed")
            self._future.set_result(outcome)

    def _to_kitchen_error(self, error: BaseException) -> KitchenError:
        """Wrap an error of another kind in RunFailed, and note how to resume the run."""
        if isinstance(error, KitchenError):
            result = error
        else:
            result = RunFailed(describe_error(error))
            result.__cause__ = with_secrets_masked(error)
            result.__notes__ = list(getattr(error, "__notes__", ()))
        if self._resume_call and isinstance(error, InUse | LostRows | OtherCode | OtherMachine):
            call = f"{self._resume_call.removesuffix(')')}, {error.option}=True)"
            result.add_note(f"to resume nevertheless: {call}")
        elif self._resume_call and resuming_can_help(error, self._access.blobs, self.id):
            result.add_note(f"to resume: {self._resume_call}")
        return with_secrets_masked(result)

    def _save_on_exit(self) -> None:
        """Stop the run, which then saves, if the process ends before it.

        This runs on a thread that is not a daemon, so that the process waits for it at its end.
        """
        while self._thread.is_alive() and threading.main_thread().is_alive():
            self._thread.join(_POLL_INTERVAL)
        if self._thread.is_alive():
            self.cancel()
            log.warning(
                "the process ends before the run: stopping it, after saving if possible",
                run=self.id,
            )
            self._thread.join(_STOP_TIMEOUT if self._stop_signal.at_once else _SAVE_TIMEOUT)


def masks_secrets(call: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that the errors it raises show no secrets."""

    @wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except KitchenError as error:
            for masked_error in (error, *getattr(error, "problems", ())):
                with_secrets_masked(masked_error)
            raise

    return wrapper


def with_secrets_masked(error: E) -> E:
    """Mask the texts of an error in place: a traceback in a notebook must show no secret."""
    error.args = tuple(mask(arg) if isinstance(arg, str) else arg for arg in error.args)
    if hasattr(error, "__notes__"):
        error.__notes__ = [mask(note) for note in error.__notes__]
    return error

"""Progress of a run in a notebook, as an output that is updated in place."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Mapping
from html import escape
from types import TracebackType
from typing import Any

from kitchen.runs.handle import Run
from kitchen.runs.status import Event, Status
from kitchen.runs.wording import activity, clock
from kitchen.secrets import printable

_INTERVAL = 0.5  # seconds between two updates


def in_notebook() -> bool:
    """Return whether this code runs in a kernel of Jupyter, which can update its outputs."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookProgress:
    """Shows the status of a run in a notebook during a `with` block.

    A separate thread updates the output, so that long stages are shown, too, and the run never
    waits. A listener collects the headline metrics.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._metrics: dict[str, float] = {}  # last values of headline metrics
        self._over = threading.Event()
        self._first: tuple[float, float] | None = None  # seconds and share, once a share was done
        context = contextvars.copy_context()  # by which Jupyter knows the cell
        self._thread = threading.Thread(
            target=context.run,
            args=(self._keep_showing,),
            name=f"progress of {run.id}",
            daemon=True,
        )
        self._display: Any = None

    def _collect(self, event: Event) -> None:
        if event.kind == "progress":
            known = {name: x for name, x in event.metrics.items() if name in self._run.headline}
            self._metrics = {**self._metrics, **known}

    def __enter__(self) -> NotebookProgress:
        from IPython.display import display

        show: Callable[..., Any] = display
        self._run.on_progress(self._collect)
        self._display = show(self._bundle(), raw=True, display_id=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._display.update(self._bundle(), raw=True)

    def _keep_showing(self) -> None:
        while not self._over.wait(_INTERVAL):
            self._display.update(self._bundle(), raw=True)

    def _bundle(self) -> Mapping[str, str]:
        """Return the progress as HTML, and as text for frontends without HTML."""
        status = self._run.status()
        parts = [printable(part) for part in self._parts(status)]
        share = 1.0 if status.state == "completed" else status.done
        value = "" if share is None or status.done == 0.0 else f' value="{share:.4f}"'
        line = escape("  ".join(parts)).replace("  ", " &middot; ")
        return {
            "text/plain": "  ".join(parts),
            "text/html": f'<progress max="1"{value}></progress> {line}',
        }

    def _parts(self, status: Status) -> list[str]:
        parts = [f"run {self._run.id}"]
        if status.state == "running":
            parts.append(_doing(status))
        else:
            parts.append(status.state)
        if status.epoch is not None:
            parts.append(f"epoch {status.epoch}")
        if status.step:
            parts.append(f"step {status.step}" + (f" of {status.steps}" if status.steps else ""))
        metrics = self._metrics
        for name in self._run.headline:
            if name in metrics:
                parts.append(f"{name.replace('_', ' ')} {metrics[name]:.4g}")
        parts.append(clock(status.seconds))
        if status.state == "running" and (left := self._seconds_left(status)) is not None:
            parts.append(f"{clock(left)} left")
        return parts

    def _seconds_left(self, status: Status) -> float | None:
        """Return an estimate from the speed since the first share of the work was done."""
        if not status.done:
            return None
        if self._first is None:
            self._first = status.seconds, status.done
        seconds, done = self._first
        if status.done <= done:
            return None
        return (1 - status.done) * (status.seconds - seconds) / (status.done - done)


def _doing(status: Status) -> str:
    """Return what a run does now, with the progress of the work if there is any."""
    named = status.work.activity if status.work else ""
    count = status.work.count() if status.work else ""
    return ", ".join(filter(None, [named or activity(status.stage) or "starting", count]))

"""Waits of a command that is no run, such as the loading of a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.status import Status
from rich.text import Text

from kitchen.backend.work import Work, listening_to_work
from kitchen.cli.console import console, has_cursor
from kitchen.secrets import printable


@contextmanager
def showing_waits(activity: str) -> Iterator[Callable[[], None]]:
    """Show on a terminal, by standard error, what the command waits for.

    `activity` is shown where nothing else is reported. Yields a function that ends it, to be called
    before the command prints.
    """
    out = console(to_stderr=True)
    if not has_cursor(out):
        yield _do_nothing
        return
    status = Status(Text(printable(activity)), console=out, spinner="line")
    stopped = threading.Event()

    def show(work: Work) -> None:
        if work.activity and not stopped.is_set():
            status.update(Text(printable(activity if work.is_over else work.activity)))

    def stop() -> None:
        stopped.set()
        status.stop()

    try:
        status.start()
        with listening_to_work(show):
            yield stop
    finally:
        stop()


def _do_nothing() -> None:
    """Stand in for the end of an activity that is not shown."""

"""Progress of long work within a stage or a command, for whoever shows it.

Work reports to the listeners of the block that started it, through a context variable: neither
stages nor adapters need to be given one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """Progress of a long piece of work, such as the answers that a stage samples."""

    done: int = 0  # items that are complete
    total: int | None = None  # None where it is unknown
    unit: str = ""  # plural of an item, such as "answers"
    activity: str = ""  # such as "Loading NAME"; empty for the activity of the stage

    @property
    def is_over(self) -> bool:
        return self.done == self.total

    def count(self) -> str:
        """Return the count, such as "120/460 answers"; empty where nothing is counted."""
        if not self.unit:
            return ""
        of = "" if self.total is None else f"/{self.total:,}"
        return f"{self.done:,}{of} {self.unit}"


WorkListener = Callable[[Work], object]
_LISTENERS: ContextVar[tuple[WorkListener, ...]] = ContextVar("listeners of work", default=())
_REPORT_SECONDS = 0.2  # between two reports of a loop over items


@contextmanager
def listening_to_work(*listeners: WorkListener) -> Iterator[None]:
    """Call the listeners, from any thread, with the progress of the work in the block."""
    token = _LISTENERS.set((*_LISTENERS.get(), *listeners))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def report_work(
    done: int = 0, total: int | None = None, *, unit: str = "", activity: str = ""
) -> None:
    """Report progress to the observers of the run, or to the command, that this code works for."""
    for listener in _LISTENERS.get():
        listener(Work(done, total, unit, activity))


@contextmanager
def reporting(activity: str) -> Iterator[None]:
    """Report an activity without a count, such as "Loading NAME", until the block ends."""
    report_work(activity=activity)
    try:
        yield
    finally:
        report_work(1, 1, activity=activity)


def counted(items: Collection[T], unit: str) -> Iterator[T]:
    """Yield the items, and report how many are done if that takes long."""
    reported = time.monotonic()
    for done, item in enumerate(items):
        if (now := time.monotonic()) - reported > _REPORT_SECONDS:
            reported = now
            report_work(done, len(items), unit=unit)
        yield item


async def gather_counted(
    awaitables: Iterable[Awaitable[T]], unit: str, *, each: int = 1, activity: str = ""
) -> list[T]:
    """Await all, like asyncio.gather, and report how many items are done, `each` per awaitable."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    done = 0

    def add(_: object) -> None:
        nonlocal done
        done += each
        report_work(done, len(tasks) * each, unit=unit, activity=activity)

    for task in tasks:
        task.add_done_callback(add)
    report_work(0, len(tasks) * each, unit=unit, activity=activity)
    return list(await asyncio.gather(*tasks))

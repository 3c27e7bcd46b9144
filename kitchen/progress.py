"""Progress of loops and of the work within a stage, and the location of a stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar, cast

T = TypeVar("T")

# index of an item -> (share of its loop that lies before it, its own share), both 0..1
Shares = Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Progress:
    """Progress of a loop; every for_each puts one in scope for its body."""

    step: int = 0  # iterations of this loop before this one, over the whole run
    # share of the outermost loop that is complete, 0..1; None where its length is unknown
    done: float | None = 0.0
    width: float = 1.0  # share of the outermost loop that this iteration takes

    @property
    def total(self) -> int | None:
        """Iterations of this loop in the whole run; None where the length is unknown."""
        return round(1 / self.width) if self.width > 0 else None

    def within(self, step: int, index: int, shares: Shares | None) -> Progress:
        """Return the progress of item `index` of a loop inside this iteration."""
        if shares is None or self.done is None:
            return Progress(step, None, 0.0)
        start, share = shares(index)
        return Progress(step, self.done + self.width * start, self.width * share)


def shares_of(items: Any, kind: Any) -> Shares | None:
    """Return the share of its loop that each item takes; None where the length is unknown.

    An item's `share` field is used if its type has one; otherwise all items have equal shares.
    """
    if not isinstance(items, Sized):
        return None
    if "share" in getattr(kind, "__annotations__", {}):
        shares = [item.share for item in cast(Iterable[Any], items)]
        starts = list(accumulate(shares, initial=0.0))
        return lambda index: (starts[index], shares[index])
    count = len(items)
    return lambda index: (index / count, 1 / count)


@dataclass(frozen=True)
class LoopStep:
    """One iteration of a loop."""

    loop: str  # title of the stage that yields the items
    step: int  # iterations of this loop before this one, over the whole run
    total: int | None = None  # iterations in the whole run; None where the length is unknown
    epoch: int | None = None  # step of the loop around this one; None for an outermost loop

    def __str__(self) -> str:
        return f"{self.loop} step {self.step}"


@dataclass(frozen=True)
class Location:
    """The recipes and loop iterations around a stage, outermost first."""

    frames: tuple[str | LoopStep, ...] = ()  # a recipe is its title

    @property
    def loops(self) -> tuple[LoopStep, ...]:
        return tuple(frame for frame in self.frames if isinstance(frame, LoopStep))

    def recipe(self, title: str) -> Location:
        """Return the location inside a recipe; an empty title adds nothing."""
        return Location((*self.frames, title)) if title else self

    def iteration(self, loop: str, progress: Progress) -> Location:
        """Return the location inside an iteration of a loop at this location."""
        epoch = self.loops[-1].step if self.loops else None
        return Location((*self.frames, LoopStep(loop, progress.step, progress.total, epoch)))

    def __str__(self) -> str:
        return " > ".join(map(str, self.frames))


NOWHERE = Location()  # outside of any run


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

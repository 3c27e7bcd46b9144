"""Progress of loops, and the location of a stage within them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

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

"""Where a loop stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True)
class Progress:
    """Where a loop stands; every for_each puts one in scope for its body."""

    step: int = 0  # iterations of this loop before this one, over the whole run
    done: float | None = 0.0  # share of the outermost loop behind us, 0..1; None where its length is unknown
    width: float = 1.0  # share of it that this iteration is

    def within(self, step: int, index: int, shares: Sequence[float] | None) -> Progress:
        """Of the item at `index` of a loop inside this iteration, whose items have these shares of it."""
        if shares is None or self.done is None:
            return Progress(step, None, 0.0)
        return Progress(step, self.done + self.width * sum(shares[:index]), self.width * shares[index])


def shares_of(items: Any, kind: Any) -> Sequence[float] | None:
    """Which share of its loop each item is: what it says itself in `share`, else all alike; None if nobody knows."""
    if not isinstance(items, Sized):
        return None
    if "share" in getattr(kind, "__annotations__", {}):
        return [item.share for item in cast(Iterable[Any], items)]
    return [1 / len(items)] * len(items)

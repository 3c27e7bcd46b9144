"""Where a loop stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

# of the item at an index: where in its loop it begins, its share of it
Shares = Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Progress:
    """Where a loop stands; every for_each puts one in scope for its body."""

    step: int = 0  # iterations of this loop before this one, over the whole run
    # share of the outermost loop behind us, 0..1; None where its length is unknown
    done: float | None = 0.0
    width: float = 1.0  # share of it that this iteration is

    def within(self, step: int, index: int, shares: Shares | None) -> Progress:
        """Of the item at `index` of a loop inside this iteration, whose items have these shares of
        it.
        """
        if shares is None or self.done is None:
            return Progress(step, None, 0.0)
        begins, share = shares(index)
        return Progress(step, self.done + self.width * begins, self.width * share)


def shares_of(items: Any, kind: Any) -> Shares | None:
    """Which share of its loop each item is: what it says itself in `share`, else all alike; None if
    nobody knows.
    """
    if not isinstance(items, Sized):
        return None
    if "share" in getattr(kind, "__annotations__", {}):
        shares = [item.share for item in cast(Iterable[Any], items)]
        begins = list(accumulate(shares, initial=0.0))
        return lambda index: (begins[index], shares[index])
    count = len(items)
    return lambda index: (index / count, 1 / count)

"""A clock that tests set."""

from __future__ import annotations


class Clock:
    """Returns `now` when called, in place of time.monotonic."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

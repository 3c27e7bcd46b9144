"""The capabilities that a run needs of its training adapter, which may try them early.

Whether a server has a feature is known for certain only once it was tried. An adapter that reads
these needs when a session opens can refuse a run before its first rollout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_NEEDED: ContextVar[frozenset[str]] = ContextVar("needed capabilities", default=frozenset())


@contextmanager
def needing(capabilities: Iterable[str]) -> Iterator[None]:
    """Make these the needed capabilities for the calls in the block."""
    token = _NEEDED.set(frozenset(capabilities))
    try:
        yield
    finally:
        _NEEDED.reset(token)


def needed_capabilities() -> frozenset[str]:
    """Return the capabilities that the current run needs; empty outside of runs."""
    return _NEEDED.get()

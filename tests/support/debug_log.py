"""Debug entries in the logs of runs, which have entries from info up otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kitchen.backend.logs import configure


@contextmanager
def debug_log() -> Iterator[None]:
    """Log debug entries of the runs in the block."""
    configure(debug=True)
    try:
        yield
    finally:
        configure()

"""Waiting for a condition that no event announces."""

from __future__ import annotations

import threading
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], timeout: float = 60) -> None:
    """Wait until a condition holds; fails after `timeout` seconds."""
    pause = threading.Event()
    for _ in range(int(timeout / 0.002)):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError(f"the condition does not hold after {timeout:g} seconds")

"""Wait for something that happens on another thread or in another process."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Poll until the condition holds; fail after `timeout` seconds, which a pass never takes."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"the condition did not hold within {timeout:g} s")
        time.sleep(0.005)

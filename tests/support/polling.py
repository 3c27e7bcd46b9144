"""Wait for something that happens on another thread, in another process or in the kernel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

INTERVAL = 0.005  # seconds between two polls


class LineReader:
    """Reads the output of a process line by line."""

    def __init__(self, lines: Iterable[str] | None) -> None:
        assert lines is not None, "the output of the process is not a pipe"
        self._lines = iter(lines)
        self._seen: list[str] = []

    def wait_for(self, text: str) -> None:
        """Read up to the first line that contains a text; fails at the end of the output."""
        for line in self._lines:
            self._seen.append(line)
            if text in line:
                return
        raise AssertionError(f"{text!r} is not in the output: {''.join(self._seen)}")

    def read_all(self) -> str:
        """Read to the end, and return everything that has been read."""
        self._seen += self._lines
        return "".join(self._seen)


def wait_until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Poll until the condition holds; fail after `timeout` seconds, which a pass never takes."""
    deadline = time.monotonic() + timeout
    while not condition():
        _check_deadline(deadline, timeout)
        time.sleep(INTERVAL)


async def wait_until_async(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Poll as `wait_until` does, while the event loop runs other tasks and can cancel this one."""
    deadline = time.monotonic() + timeout
    while not condition():
        _check_deadline(deadline, timeout)
        await asyncio.sleep(INTERVAL)


def _check_deadline(deadline: float, timeout: float) -> None:
    if time.monotonic() > deadline:
        raise AssertionError(f"the condition did not hold within {timeout:g} s")

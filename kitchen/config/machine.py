"""Cores and memory of this machine, as the processes on it may use them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def memory() -> Mapping[str, int]:
    """Return the memory of the machine in bytes, and "free memory" where the system reports it."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return {"memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return {
        name: int(lines[field].split()[0]) * 1024
        for name, field in (("memory", "MemTotal"), ("free memory", "MemAvailable"))
    }


def free_memory() -> int | None:
    """Return the memory in bytes that processes can still use; None if the system does not say.

    The limit of a container is not considered.
    """
    return memory().get("free memory")


def gib(count: int) -> str:
    """Return a number of bytes as text, such as "4.0 GiB"."""
    return f"{count / 2**30:,.1f} GiB"

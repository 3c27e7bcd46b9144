"""Resident memory of this process, as Linux counts it."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def settle() -> float:
    """Give freed memory back, and let the peak begin here. Returns what is resident, in MB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")  # the peak is what is resident now (proc(5))
    return _status("VmRSS")


def peak_mb() -> float:
    """The most that was resident since `settle`, in MB."""
    return _status("VmHWM")


def _status(name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{STATUS} has no {name}: memory is measured on Linux only")
    return int(found[1]) / 1024

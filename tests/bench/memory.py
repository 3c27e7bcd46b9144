"""Memory of this process: on the CUDA device, or its resident set size on Linux."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def cuda() -> Any:
    """Return `torch.cuda` if this process has initialised it, else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def reset_peak() -> float:
    """Free unused memory and reset the peak; return the memory in use in MB."""
    gc.collect()
    if (device := cuda()) is not None:
        device.empty_cache()
        device.reset_peak_memory_stats()
        return float(device.memory_allocated()) / 2**20
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")  # resets VmHWM to VmRSS (proc(5))
    return _status("VmRSS")


def peak_mb() -> float:
    """Return the peak memory since `reset_peak` in MB."""
    if (device := cuda()) is not None:
        return float(device.max_memory_allocated()) / 2**20
    return _status("VmHWM")


def _status(name: str) -> float:
    match = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"{STATUS} has no {name}: memory is measured on Linux only")
    return int(match[1]) / 1024

"""Memory of this process: on the CUDA device, or resident in RAM as Linux counts it."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def cuda() -> Any:
    """Return `torch.cuda`, or None while this process computes on the CPU only."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def settle() -> float:
    """Free memory and reset the peak. Returns what is in use, in MB."""
    gc.collect()
    if (device := cuda()) is not None:
        device.empty_cache()
        device.reset_peak_memory_stats()
        return float(device.memory_allocated()) / 2**20
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")  # the peak is what is resident now (proc(5))
    return _status("VmRSS")


def peak_mb() -> float:
    """Return the peak since `settle`, in MB."""
    if (device := cuda()) is not None:
        return float(device.max_memory_allocated()) / 2**20
    return _status("VmHWM")


def _status(name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{STATUS} has no {name}: memory is measured on Linux only")
    return int(found[1]) / 1024

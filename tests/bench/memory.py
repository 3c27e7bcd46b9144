"""Memory that this process takes: of the CUDA device if it computes on one, else what is resident,
by Linux's count.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def cuda() -> Any:
    """`torch.cuda`, or None as long as this process computes with nothing but the CPU."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def settle() -> float:
    """Give freed memory back, and let the peak begin here. Returns what is taken, in MB."""
    gc.collect()
    if (device := cuda()) is not None:
        device.empty_cache()
        device.reset_peak_memory_stats()
        return float(device.memory_allocated()) / 2**20
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")  # the peak is what is resident now (proc(5))
    return _status("VmRSS")


def peak_mb() -> float:
    """The most that was taken at once since `settle`, in MB."""
    if (device := cuda()) is not None:
        return float(device.max_memory_allocated()) / 2**20
    return _status("VmHWM")


def _status(name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{STATUS} has no {name}: memory is measured on Linux only")
    return int(found[1]) / 1024

"""What the processor multiplies quickly."""

from __future__ import annotations

from functools import cache

import torch


def multiplies_bfloat16() -> bool:
    """AMX, or AVX512-BF16 that is not Intel's: there it runs at half the rate of float32 (docs/benchmarks.md).

    Where that cannot be told, float32 is the safe choice.
    """
    return "amx_bf16" in _words() or ("avx512_bf16" in _words() and not is_intel())


def is_intel() -> bool:
    return "GenuineIntel" in _words()


@cache
def _words() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo") as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()


def multiplied_in(x: torch.Tensor) -> torch.dtype:
    """Of products with x: float32 for bfloat16 on a processor that does not multiply it quickly, else as it is.

    There torch takes up to three times as long as for casting first; and what is added up in float32 is rounded once,
    where a product in bfloat16 is rounded before more is added to it (docs/benchmarks.md).
    """
    narrow = x.dtype == torch.bfloat16 and x.device.type == "cpu" and not multiplies_bfloat16()
    return torch.float32 if narrow else x.dtype

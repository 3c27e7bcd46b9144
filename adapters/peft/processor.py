"""What the processor multiplies quickly."""

from __future__ import annotations

from functools import cache

import torch


@cache
def multiplies_bfloat16() -> bool:
    """AVX512-BF16 or AMX on x86; elsewhere float32 is the safe choice."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16"} & set(flags.split()))


def multiplied_in(x: torch.Tensor) -> torch.dtype:
    """Of products with x: float32 for bfloat16 on a processor that has no instruction for it, else as it is.

    Without such an instruction torch takes three times as long as for casting first; and what is added up in float32
    is rounded once, where a product in bfloat16 is rounded before more is added to it (docs/benchmarks.md).
    """
    narrow = x.dtype == torch.bfloat16 and x.device.type == "cpu" and not multiplies_bfloat16()
    return torch.float32 if narrow else x.dtype

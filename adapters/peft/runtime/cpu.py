"""What the processor multiplies quickly."""

from __future__ import annotations

import platform
from functools import cache

import torch

KNOWN = ("GenuineIntel", "AuthenticAMD", "avx512_bf16", "amx_bf16", "bf16", "i8mm", "sve")


def multiplies_bfloat16() -> bool:
    """AMX, or AVX512-BF16 that is not Intel's: there it runs at half the rate of float32
    (docs/benchmarks.md).

    Where that cannot be told, float32 is the safe choice.
    """
    return "amx_bf16" in _words() or ("avx512_bf16" in _words() and not is_intel())


def is_intel() -> bool:
    return "GenuineIntel" in _words()


def described() -> str:
    """Its maker and what it multiplies with, as far as Linux says: by these torch and its libraries
    choose how to multiply, and so the last bits.
    """
    known = [word for word in KNOWN if word in _words()]
    return " ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *known])


@cache
def has_onednn() -> bool:
    """And one that multiplies bfloat16, so that all its formats are there."""
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return there and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def best_by_onednn(x: torch.Tensor) -> bool:
    """Products of float32 with hundreds of rows, on a processor that is not Intel's: MKL takes 1.1
    to 1.4 times as long (docs/benchmarks.md).
    """
    return x.dtype == torch.float32 and x.device.type == "cpu" and has_onednn() and not is_intel()


@cache
def _words() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo") as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()


def multiplied_in(x: torch.Tensor) -> torch.dtype:
    """Of products with x: float32 for bfloat16 on a processor that does not multiply it quickly,
    else as it is.

    There torch takes up to three times as long as for casting first; and what is added up in
    float32 is rounded once, where a product in bfloat16 is rounded before more is added to it
    (docs/benchmarks.md).
    """
    narrow = x.dtype == torch.bfloat16 and x.device.type == "cpu" and not multiplies_bfloat16()
    return torch.float32 if narrow else x.dtype

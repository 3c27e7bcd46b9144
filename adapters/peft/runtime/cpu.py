"""Capabilities of the processor: number formats that it multiplies fast, and the library for it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

REPORTED_FLAGS = ("GenuineIntel", "AuthenticAMD", "avx512_bf16", "amx_bf16", "bf16", "i8mm", "sve")


def has_fast_bfloat16() -> bool:
    """Return true for AMX, or for AVX512-BF16 on a processor that is not Intel's.

    On Intel's, AVX512-BF16 runs at half the rate of float32 (docs/benchmarks.md). Where the
    processor is unknown, float32 is the safe choice.
    """
    flags = _cpu_flags()
    return "amx_bf16" in flags or ("avx512_bf16" in flags and not is_intel())


def is_intel() -> bool:
    """Return true for Intel's processors."""
    return "GenuineIntel" in _cpu_flags()


def describe_cpu() -> str:
    """Return the processor's maker and vector extensions, as far as Linux reports them.

    torch and its libraries choose kernels by these, which decide the last bits of results.
    """
    flags = [flag for flag in REPORTED_FLAGS if flag in _cpu_flags()]
    return " ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *flags])


@cache
def has_onednn() -> bool:
    """Return true if torch has a oneDNN that multiplies bfloat16, and so has all its formats."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def prefers_onednn(x: torch.Tensor) -> bool:
    """Return true for float32 products with hundreds of rows on a processor that is not Intel's.

    There MKL takes 1.1 to 1.4 times as long (docs/benchmarks.md).
    """
    return x.dtype == torch.float32 and x.device.type == "cpu" and has_onednn() and not is_intel()


def matmul_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype in which products with x are computed.

    float32 for bfloat16 on a processor without fast bfloat16: there torch takes up to three times
    as long as for casting first, and a sum in float32 is rounded once, where a product in bfloat16
    is rounded before more is added to it (docs/benchmarks.md). Else the dtype of x.
    """
    slow = x.dtype == torch.bfloat16 and x.device.type == "cpu" and not has_fast_bfloat16()
    return torch.float32 if slow else x.dtype


@contextmanager
def assume_cpu_flags(*flags: str) -> Iterator[None]:
    """Compute within a block as on a processor with these flags; for tests and benchmarks.

    It holds for all threads of the process.
    """
    before = list(_ASSUMED)
    _ASSUMED[:] = [frozenset(flags)]
    try:
        yield
    finally:
        _ASSUMED[:] = before


_ASSUMED = list[frozenset[str]]()  # empty, or the flags to assume instead of the processor's


def _cpu_flags() -> frozenset[str]:
    return _ASSUMED[0] if _ASSUMED else _words_of_cpuinfo()


@cache
def _words_of_cpuinfo() -> frozenset[str]:
    """Return all words of /proc/cpuinfo."""
    try:
        with open("/proc/cpuinfo") as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()

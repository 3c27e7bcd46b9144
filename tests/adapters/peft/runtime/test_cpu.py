"""Capabilities of the processor, by the flags that Linux reports."""

from __future__ import annotations

import pytest

from adapters.peft.runtime.cpu import assume_cpu_flags, has_fast_bfloat16


@pytest.mark.parametrize(
    ("flags", "fast"),
    [
        ("GenuineIntel avx512_bf16 amx_bf16", True),
        ("GenuineIntel avx512_bf16", False),
        ("AuthenticAMD avx512_bf16", True),
        ("AuthenticAMD avx2", False),
        ("", False),
    ],
)
def test_fast_bfloat16_by_processor_flags(flags: str, fast: bool) -> None:
    with assume_cpu_flags(*flags.split()):
        assert has_fast_bfloat16() is fast

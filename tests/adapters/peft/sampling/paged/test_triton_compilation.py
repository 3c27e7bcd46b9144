"""The Triton kernels compile for a CUDA device, which the interpreter does not tell."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from adapters.peft.sampling.paged import triton_kernels as kernels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not isinstance(kernels._attend, JITFunction), reason="TRITON_INTERPRET is set"
    ),
]
HOPPER = GPUTarget("cuda", 90, 32)
MAX_SHARED_MEMORY = 227 * 1024  # bytes of a program
POINTERS = {
    "state": "*i32",
    "table": "*i32",
    "controls": "*fp64",
    "results": "*fp64",
    "tokens": "*i64",
    "parts": "*fp32",
    "sums": "*fp32",
    "summaries": "*fp32",
    "eps": "fp32",
    "scale": "fp32",
}
NUMBERS = frozenset(
    {
        "width",
        "count",
        "vocabulary",
        "blocks",
        "sums_at",
        "controls_stride",
        "state_stride",
        "table_stride",
        "part_stride",
        "sums_stride",
    }
)
LAYER = {"KV_HEADS": 8, "PAGE": 64}
ROPE = {**LAYER, "TILE": 16, "HAS_NORMS": False}


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("_add_norm", {"HAS_DELTA": True, "RANK": 32, "RANK_STEP": 4, "BLOCK": 4096}),
        ("_add_norm", {"HAS_DELTA": False, "RANK": 0, "RANK_STEP": 4, "BLOCK": 2048}),
        ("_rope_and_store", {**ROPE, "QUERY_HEADS": 32, "HALF": 64, "RANK": 32}),
        ("_rope_and_store", {**ROPE, "QUERY_HEADS": 16, "HALF": 8, "RANK": 0}),
        ("_rope_and_store", {**ROPE, "QUERY_HEADS": 32, "HALF": 64, "RANK": 32, "HAS_NORMS": True}),
        ("_attend", {**LAYER, "GROUP": 4, "TILE": 16, "DIM": 128, "SPLITS": 1}),
        ("_attend", {**LAYER, "GROUP": 2, "TILE": 16, "DIM": 16, "SPLITS": 4}),
        ("_merge_splits", {"DIM": 64, "SPLITS": 16}),
        ("_swiglu", {"RANK": 32, "TILE": 16, "BLOCK": 128}),
        ("_sum_blocks", {"BLOCK": 1024}),
        ("_pick_token", {"BLOCK": 1024, "BLOCKS": 128}),
    ],
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_kernel_compiles_for_hopper(name: str, constants: dict[str, Any], dtype: str) -> None:
    kernel: Any = getattr(kernels, name)
    signature, values = {}, {}
    for place, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument], values[(place,)] = "constexpr", constants[argument]
        elif argument in NUMBERS:
            signature[argument] = "i32"
        else:
            signature[argument] = POINTERS.get(argument, f"*{dtype}")
    compiled = compile(ASTSource(kernel, signature, values), target=HOPPER)
    assert "cubin" in compiled.asm
    assert compiled.metadata.shared <= MAX_SHARED_MEMORY

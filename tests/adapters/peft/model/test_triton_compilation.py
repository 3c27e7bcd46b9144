"""Triton compiles all kernels of training for a Hopper GPU; this needs no such device.

The interpreter accepts code that the compiler refuses, so it cannot stand in for this test.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("TRITON_INTERPRET=1 turns the compiler off", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from adapters.peft.model import triton_elementwise, triton_logits  # noqa: E402

# of each kernel: its module, the types of its parameters, and its constants
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "_norm": (
        triton_elementwise,
        {
            "x_ptr": "*T",
            "weight_ptr": "*T",
            "out_ptr": "*T",
            "rms_ptr": "*fp32",
            "width": "i32",
            "eps": "fp32",
        },
        {"BLOCK": 2048},
    ),
    "_norm_backward": (
        triton_elementwise,
        {
            "gradient_ptr": "*T",
            "x_ptr": "*T",
            "weight_ptr": "*T",
            "rms_ptr": "*fp32",
            "added_ptr": "*T",
            "out_ptr": "*T",
            "width": "i32",
        },
        {"ADD": True, "BLOCK": 2048},
    ),
    "_rotate": (
        triton_elementwise,
        {
            "x_ptr": "*T",
            "cos_ptr": "*T",
            "sin_ptr": "*T",
            "stride": "i32",
            "heads": "i32",
            "half": "i32",
        },
        {"BACK": True, "HEADS": 64, "HALF": 64},
    ),
    "_swiglu": (
        triton_elementwise,
        {"gate_up_ptr": "*T", "out_ptr": "*T", "width": "i32"},
        {"BLOCK": 1024},
    ),
    "_swiglu_backward": (
        triton_elementwise,
        {"gradient_ptr": "*T", "gate_up_ptr": "*T", "out_ptr": "*T", "width": "i32"},
        {"BLOCK": 1024},
    ),
    "_logsumexp": (
        triton_logits,
        {"logits_ptr": "*T", "out_ptr": "*fp32", "width": "i32"},
        {"BLOCK": 4096},
    ),
    "_softmax_gradient": (
        triton_logits,
        {"logits_ptr": "*T", "lse_ptr": "*fp32", "totals_ptr": "*fp32", "width": "i32"},
        {"BLOCK": 4096},
    ),
}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_a_hopper_gpu(name: str, dtype: str) -> None:
    module, parameters, constants = KERNELS[name]
    signature = {key: kind.replace("T", dtype) for key, kind in parameters.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=getattr(module, name), signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert ".target sm_90" in compiled.asm["ptx"]


def test_all_kernels_are_compiled() -> None:
    found = set()
    for module in (triton_elementwise, triton_logits):
        members = vars(module).items()
        found |= {name for name, member in members if isinstance(member, triton.JITFunction)}
    assert found == set(KERNELS)

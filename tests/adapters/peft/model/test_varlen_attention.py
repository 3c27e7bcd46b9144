"""Variable-length attention with plain kernels, against torch one sequence at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adapters.peft.batching.packed_layout import PackedLayout, build_layout
from adapters.peft.model.varlen_attention import (
    FlashKernel,
    VarlenAttention,
    VarlenKernel,
    has_flash_kernel,
)
from tests.support.attention_cases import CASES, START, inputs, plain, sequences
from tests.support.torch_kernels import TorchKernel

CPU = torch.device("cpu")
SCALE = 0.3


def attend(
    layout: PackedLayout,
    parts: list[torch.Tensor],
    prefix_kv: torch.Tensor | None = None,
    dkv: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the output and the gradients, given query, key, value and a gradient."""
    query, key, value, gradient = (part.detach() for part in parts)
    attention = VarlenAttention(TorchKernel(), key.shape[1], SCALE)
    qkv = torch.cat([query, key, value], 1)
    out, lse = attention.forward(qkv, prefix_kv, layout)
    dqkv, dprefix = attention.backward(gradient, qkv, prefix_kv, out, lse, layout, dkv)
    return out, dqkv, dprefix


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (3, 3), (4, 1)])
def test_outputs_and_gradients_match_torch(case: str, heads: int, groups: int) -> None:
    layout = build_layout(CASES[case], CPU)
    parts = inputs(len(layout.ids), heads, groups)
    expected = plain(*parts[:3], layout, SCALE)
    gradients = torch.autograd.grad(expected, parts[:3], parts[3])
    out, dqkv, dprefix = attend(layout, parts)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dqkv, torch.cat(gradients, 1), rtol=1e-11, atol=1e-12)
    assert dprefix is None


@pytest.mark.parametrize("prefix_length", [40, 150])
def test_a_carried_prefix_gets_its_gradient(prefix_length: int) -> None:
    """As if the prefix had been computed with the rest; sequences share more tokens than it."""
    rows = sequences((150, 9), (150, 30), (150, 0), (150, 20))
    whole = build_layout(rows, CPU)
    parts = inputs(len(whole.ids), 4, 2)
    expected = plain(*parts[:3], whole, SCALE)
    # only the queries behind the prefix are computed here
    gradients = torch.autograd.grad(expected[prefix_length:], parts[:3], parts[3][prefix_length:])
    layout = build_layout(rows, CPU, prefix_length=prefix_length)
    prefix_kv = torch.cat([part.detach()[:prefix_length] for part in parts[1:3]], 1)
    dkv = torch.ones(len(layout.ids), 4, 8, dtype=torch.float64)
    out, dqkv, dprefix = attend(layout, [x[prefix_length:] for x in parts], prefix_kv, dkv)
    torch.testing.assert_close(out, expected.detach()[prefix_length:], rtol=1e-12, atol=1e-12)
    near: Any = {"rtol": 1e-11, "atol": 1e-12}
    torch.testing.assert_close(dqkv[:, :4], gradients[0][prefix_length:], **near)
    dkey_value = torch.cat(gradients[1:], 1)
    torch.testing.assert_close(dqkv[:, 4:], dkey_value[prefix_length:] + 1, **near)
    assert dprefix is not None
    torch.testing.assert_close(dprefix, dkey_value[:prefix_length], **near)


def test_gradients_of_a_prefix_are_summed_in_float32() -> None:
    """512 sequences add to the same keys: in bfloat16 the late terms would be lost."""
    rows = sequences(*[(40, 1)] * 512)
    layout = build_layout(rows, CPU)
    parts = inputs(len(layout.ids), 2, 2)
    expected = attend(layout, parts)[1][:40]
    low = attend(layout, [part.bfloat16() for part in parts])[1][:40]
    apart = torch.linalg.vector_norm(low.double() - expected)
    assert float(apart / torch.linalg.vector_norm(expected)) < 0.01


def test_bfloat16_is_close_to_float64() -> None:
    layout = build_layout(CASES["shared"], CPU)
    parts = inputs(len(layout.ids), 6, 2)
    exact = attend(layout, parts)[:2]
    low = attend(layout, [part.bfloat16() for part in parts])[:2]
    for got, expected in zip(low, exact, strict=True):
        assert got.dtype == torch.bfloat16
        assert got.is_contiguous()
        apart = torch.linalg.vector_norm(got.double() - expected)
        assert float(apart / torch.linalg.vector_norm(expected)) < 0.01


def test_a_token_alone_attends_to_itself() -> None:
    layout = build_layout([START[:1]], CPU)
    parts = inputs(1, 2, 2)
    torch.testing.assert_close(attend(layout, parts)[0], parts[2].detach())


def test_a_cpu_has_no_flash_kernel() -> None:
    assert not has_flash_kernel(CPU, torch.bfloat16, 64)


@pytest.mark.skipif(
    not torch.cuda.is_available() or not has_flash_kernel(torch.device("cuda"), torch.bfloat16, 64),
    reason="needs a CUDA device with FlashAttention",
)
@pytest.mark.parametrize("case", ["unequal", "shared", "shared, several tiles", "long"])
def test_flash_kernel_matches_plain_operations(case: str) -> None:
    """Within the rounding of bfloat16; and a second call returns the same bits."""
    device = torch.device("cuda")
    layout = build_layout(CASES[case], device)
    query, key, value, gradient = (
        part.detach().to(device).bfloat16() for part in inputs(len(layout.ids), 8, 2, 64, 64)
    )
    qkv = torch.cat([query, key, value], 1)

    def run(kernel: VarlenKernel, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        attention = VarlenAttention(kernel, 2, SCALE)
        out, lse = attention.forward(given, None, layout)
        upstream = gradient.to(given.dtype)
        return out, attention.backward(upstream, given, None, out, lse, layout, None)[0]

    exact, flash = run(TorchKernel(), qkv.double()), run(FlashKernel(device), qkv)
    for got, expected in zip(flash, exact, strict=True):
        apart = torch.linalg.vector_norm(got.double() - expected)
        assert float(apart / torch.linalg.vector_norm(expected)) < 0.01
    for got, again in zip(flash, run(FlashKernel(device), qkv), strict=True):
        assert torch.equal(got, again)

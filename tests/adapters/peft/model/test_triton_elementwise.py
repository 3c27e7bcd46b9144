"""Triton's elementwise kernels against those of torch in float64.

Without a CUDA device they run in Triton's interpreter: TRITON_INTERPRET=1 must be set before Python
starts. CONTRIBUTING.md has the command.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

from adapters.peft.model.elementwise import TorchElementwise
from adapters.peft.model.head_norms import HeadNorms

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a CUDA device or TRITON_INTERPRET=1", allow_module_level=True)

from adapters.peft.model.triton_elementwise import TritonElementwise  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
NEAR: dict[torch.dtype, Any] = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}
DTYPES = pytest.mark.parametrize("dtype", NEAR)


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


class NormModule(nn.Module):
    """The parameters of a norm of transformers."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.variance_epsilon = 0.01


class AttentionModule(nn.Module):
    """The norms of queries and keys of an attention of transformers."""

    def __init__(self, query: torch.Tensor, key: torch.Tensor) -> None:
        super().__init__()
        self.q_norm, self.k_norm = NormModule(query), NormModule(key)


@DTYPES
def test_norms_of_queries_and_keys_match_torch(dtype: torch.dtype) -> None:
    weights = random(64, dtype=dtype), random(64, dtype=dtype) * 2
    exact_module = AttentionModule(*(weight.double() for weight in weights))
    exact = HeadNorms(exact_module, TorchElementwise(), 4, 2)
    norms = HeadNorms(AttentionModule(*weights), TritonElementwise(), 4, 2)
    qkv, gradient = random(7, 8, 64, dtype=dtype), random(7, 8, 64, dtype=dtype) * 2
    expected, expected_gradient = qkv.double(), gradient.double()
    before, exact_before = norms.forward(qkv), exact.forward(expected)
    torch.testing.assert_close(qkv, expected.to(dtype), **NEAR[dtype])
    norms.backward(gradient, before)
    exact.backward(expected_gradient, exact_before)
    torch.testing.assert_close(gradient, expected_gradient.to(dtype), **NEAR[dtype])


@DTYPES
@pytest.mark.parametrize("width", [64, 96, 200])
def test_norm_and_its_gradient_match_torch(width: int, dtype: torch.dtype) -> None:
    weight, x = random(width, dtype=dtype), random(7, width, dtype=dtype)
    gradient, added = random(7, width, dtype=dtype) * 2, random(7, width, dtype=dtype) * 3
    exact = TorchElementwise().norm(NormModule(weight.double()))
    norm = TritonElementwise().norm(NormModule(weight))
    expected, expected_rms = exact.forward(x.double())
    out, rms = norm.forward(x)
    torch.testing.assert_close(out, expected.to(dtype), **NEAR[dtype])
    torch.testing.assert_close(rms, expected_rms.float())
    assert torch.equal(norm.rescale(x, rms), out)
    for plus in (None, added):
        expected_plus = None if plus is None else plus.double()
        dx = exact.backward(gradient.double(), x.double(), expected_rms, expected_plus)
        got = norm.backward(gradient.clone(), x, rms, plus)
        torch.testing.assert_close(got, dx.to(dtype), **NEAR[dtype])


@DTYPES
@pytest.mark.parametrize(("heads", "rotated", "width"), [(6, 4, 16), (5, 3, 8), (3, 2, 24)])
def test_rotation_and_its_transpose_match_torch(
    heads: int, rotated: int, width: int, dtype: torch.dtype
) -> None:
    angles = random(9, 1, width // 2, dtype=torch.float32)
    rope = angles.cos().to(dtype), angles.sin().to(dtype)
    exact_rope = rope[0].double(), rope[1].double()
    for back in (False, True):
        x = random(9, heads, width, dtype=dtype)
        expected = x.double()
        TorchElementwise().rotate(expected[:, :rotated], exact_rope, back=back)
        TritonElementwise().rotate(x[:, :rotated], rope, back=back)
        torch.testing.assert_close(x, expected.to(dtype), **NEAR[dtype])


@DTYPES
@pytest.mark.parametrize("width", [24, 1024, 1500])
def test_gated_activation_and_its_gradient_match_torch(width: int, dtype: torch.dtype) -> None:
    gate_up, gradient = random(3, 2 * width, dtype=dtype), random(3, width, dtype=dtype)
    gate_up[0, :4] = torch.tensor([-90.0, 90.0, 0.0, -5.0])  # exp of these overflows in float32
    exact, kernels = TorchElementwise(), TritonElementwise()
    expected = exact.swiglu(gate_up.double()).to(dtype)
    torch.testing.assert_close(kernels.swiglu(gate_up), expected, **NEAR[dtype])
    hidden, activated = kernels.swiglu_again(gate_up)
    assert torch.equal(hidden, kernels.swiglu(gate_up))
    got = kernels.swiglu_backward(gradient.clone(), gate_up, activated)
    dgate_up = exact.swiglu_backward(gradient.double(), gate_up.double(), None)
    torch.testing.assert_close(got, dgate_up.to(dtype), **NEAR[dtype])

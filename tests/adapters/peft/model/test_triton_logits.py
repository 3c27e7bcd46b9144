"""Triton's kernels over logits, against those of torch in float64.

Without a CUDA device they run in Triton's interpreter, as in test_triton_elementwise.py.
"""

from __future__ import annotations

import os

import pytest
import torch

from tests.support.torch_kernels import TorchLogitKernels

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a CUDA device or TRITON_INTERPRET=1", allow_module_level=True)

from adapters.peft.model.triton_logits import TritonLogitKernels  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [7, 4096, 9000])
def test_logsumexp_and_gradient_match_torch(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    logits = (torch.randn(3, width, generator=generator) * 4).to(dtype).to(DEVICE)
    logits[0, 3] = 90.0  # exp of it overflows in float32
    logits[1] = -90.0
    totals = torch.tensor([1.0, -2.5, 0.0], device=DEVICE)
    exact, kernels = TorchLogitKernels(), TritonLogitKernels()
    expected = exact.logsumexp(logits.double())
    lse = kernels.logsumexp(logits)
    torch.testing.assert_close(lse, expected.float(), rtol=1e-5, atol=1e-5)
    gradient = logits.double()
    exact.softmax_gradient_(gradient, expected, totals.double())
    kernels.softmax_gradient_(logits, lse, totals)
    near = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-5}
    torch.testing.assert_close(logits, gradient.to(dtype), **near)

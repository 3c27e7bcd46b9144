"""Kernels over rows of logits in Triton: each reads them once, and stores no copy."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096  # logits of a row that a program holds at a time


class TritonLogitKernels:
    """Logit kernels for a CUDA device, on contiguous rows."""

    def logsumexp(self, logits: torch.Tensor) -> torch.Tensor:
        count, width = logits.shape
        out = logits.new_empty(count, dtype=torch.float32)
        _logsumexp[(count,)](logits, out, width, BLOCK=BLOCK, num_warps=8)
        return out

    def softmax_gradient_(
        self, logits: torch.Tensor, lse: torch.Tensor, totals: torch.Tensor
    ) -> None:
        count, width = logits.shape
        grid = count, triton.cdiv(width, BLOCK)
        _softmax_gradient[grid](logits, lse, totals, width, BLOCK=BLOCK, num_warps=8)


@triton.jit
def _logsumexp(logits_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    # per column of a block, so that a row is reduced only once
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        mask = start + columns < width
        x = tl.load(logits_ptr + row * width + start + columns, mask=mask, other=float("-inf"))
        x = x.to(tl.float32)
        new_top = tl.maximum(top, x)
        total = total * tl.exp(top - new_top) + tl.exp(x - new_top)
        top = new_top
    highest = tl.max(top, 0)
    whole = tl.sum(total * tl.exp(top - highest), 0)
    tl.store(out_ptr + row, highest + tl.log(whole))


@triton.jit
def _softmax_gradient(logits_ptr, lse_ptr, totals_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    at = logits_ptr + row * width + columns
    logits = tl.load(at, mask=mask, other=0.0)
    lse = tl.load(lse_ptr + row)
    total = tl.load(totals_ptr + row)
    gradient = -total * tl.exp(logits.to(tl.float32) - lse)
    tl.store(at, gradient.to(logits.dtype), mask=mask)

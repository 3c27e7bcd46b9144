"""Elementwise kernels in Triton: each reads and writes its tensors once, in one launch.

Sums and products are computed in float32, and rounded where they are stored.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from adapters.peft.model.elementwise import RMSNorm, Rope

BLOCK = 1024  # columns of a program of the gated activation


class TritonElementwise:
    """Elementwise kernels for a CUDA device."""

    def norm(self, module: Any) -> RMSNorm:
        return TritonRMSNorm(module)

    def rotate(self, x: torch.Tensor, rope: Rope, *, back: bool = False) -> None:
        count, heads, width = x.shape
        cos, sin = rope
        _rotate[(count,)](
            x,
            cos,
            sin,
            x.stride(0),
            heads,
            width // 2,
            BACK=back,
            HEADS=triton.next_power_of_2(heads),
            HALF=triton.next_power_of_2(width // 2),
        )

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        count, width = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(count, width)
        _swiglu[(count, triton.cdiv(width, BLOCK))](gate_up, out, width, BLOCK=BLOCK)
        return out

    def swiglu_again(self, gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.swiglu(gate_up), None

    def swiglu_backward(
        self, gradient: torch.Tensor, gate_up: torch.Tensor, activated: torch.Tensor | None
    ) -> torch.Tensor:
        count, width = gradient.shape
        out = torch.empty_like(gate_up)
        grid = count, triton.cdiv(width, BLOCK)
        _swiglu_backward[grid](gradient, gate_up, out, width, BLOCK=BLOCK)
        return out


class TritonRMSNorm(RMSNorm):
    """An RMSNorm of contiguous rows, one program each."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._block = triton.next_power_of_2(len(self.weight))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.contiguous()
        out, rms = torch.empty_like(x), x.new_empty(len(x), 1, dtype=torch.float32)
        width = x.shape[1]
        _norm[(len(x),)](x, self.weight, out, rms, width, self.eps, BLOCK=self._block)
        return out, rms

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)[0]

    def rescale(self, x: torch.Tensor, rms: torch.Tensor) -> torch.Tensor:
        return self.forward(x)[0]

    def backward(
        self,
        gradient: torch.Tensor,
        x: torch.Tensor,
        rms: torch.Tensor,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = torch.empty_like(x)
        _norm_backward[(len(x),)](
            gradient.contiguous(),
            x,
            self.weight,
            rms,
            x if added is None else added.contiguous(),
            out,
            x.shape[1],
            ADD=added is not None,
            BLOCK=self._block,
        )
        return out


@triton.jit
def _norm(x_ptr, weight_ptr, out_ptr, rms_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    rms = tl.sqrt(tl.sum(x * x) / width + eps)
    # rounded before it is multiplied, as in transformers
    normed = (x / rms).to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(rms_ptr + row, rms)
    tl.store(out_ptr + row * width + columns, normed.to(weight.dtype), mask=mask)


@triton.jit
def _norm_backward(
    gradient_ptr,
    x_ptr,
    weight_ptr,
    rms_ptr,
    added_ptr,
    out_ptr,
    width,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    at = row * width + columns
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    given = tl.load(gradient_ptr + at, mask=mask, other=0.0)
    gradient = given.to(tl.float32) * weight
    rms = tl.load(rms_ptr + row)
    along = tl.sum(gradient * x) / (rms * rms * rms * width)
    dx = gradient / rms - x * along
    if ADD:
        dx += tl.load(added_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, dx.to(given.dtype), mask=mask)


@triton.jit
def _rotate(
    x_ptr,
    cos_ptr,
    sin_ptr,
    stride,
    heads,
    half,
    BACK: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    mask = (head < heads) & (column < half)
    at = x_ptr + row * stride + head * (2 * half) + column
    cos = tl.load(cos_ptr + row * half + column, mask=column < half).to(tl.float32)
    sin = tl.load(sin_ptr + row * half + column, mask=column < half).to(tl.float32)
    if BACK:
        sin = -sin
    first = tl.load(at, mask=mask)
    second = tl.load(at + half, mask=mask)
    a, b = first.to(tl.float32), second.to(tl.float32)
    tl.store(at, (a * cos - b * sin).to(first.dtype), mask=mask)
    tl.store(at + half, (b * cos + a * sin).to(first.dtype), mask=mask)


@triton.jit
def _swiglu(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    at = gate_up_ptr + row * (2 * width) + columns
    up = tl.load(at + width, mask=mask, other=0.0)
    gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up.to(tl.float32)
    tl.store(out_ptr + row * width + columns, out.to(up.dtype), mask=mask)


@triton.jit
def _swiglu_backward(gradient_ptr, gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    at = row * (2 * width) + columns
    given = tl.load(gradient_ptr + row * width + columns, mask=mask, other=0.0)
    gradient = given.to(tl.float32)
    gate = tl.load(gate_up_ptr + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + at + width, mask=mask, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    dgate = gradient * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    dup = gradient * gate * sigmoid
    tl.store(out_ptr + at, dgate.to(given.dtype), mask=mask)
    tl.store(out_ptr + at + width, dup.to(given.dtype), mask=mask)

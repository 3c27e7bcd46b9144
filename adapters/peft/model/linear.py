"""Linear layers that read the same input as one matrix product, with LoRA weights beside them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from adapters.peft.model.dora import DoraLinear
from adapters.peft.model.lora_linear import LoraLinear
from adapters.peft.runtime.cpu import matmul_dtype, prefers_onednn

# rows: oneDNN keeps memory for each number of rows that it has seen, so there must not be many
ONEDNN_ROW_BLOCK = 64
HAS_OUT_DTYPE = hasattr(torch.ops.aten.mm, "dtype")  # products with another dtype than the inputs


def make_contiguous(layers: Sequence[nn.Linear]) -> None:
    """Move the weights of some layers, and their biases, next to each other in memory.

    One view then covers them all.
    """
    for name in ("weight", "bias"):
        parts = [getattr(layer, name) for layer in layers]
        if all(part is not None for part in parts):
            whole = torch.cat([part.detach() for part in parts])
            pieces = torch.split(whole, [len(part) for part in parts])
            for part, piece in zip(parts, pieces, strict=True):
                part.data = piece


class LoraSlice(NamedTuple):
    """The LoRA weights of one layer, and the columns of the fused product that belong to them."""

    columns: slice  # of y
    ranks: slice  # of A x
    layer: LoraLinear


class FusedLinear:
    """y = W x + b + scale · B A x over layers side by side, and its gradient; W is frozen.

    Frozen DoRA multiplies W x by the scale of its rows; DoRA in training is not computed here.

    The products with A and B are in the dtype of the base, as in mixed-precision training, or in
    its matmul dtype; their gradients are accumulated in the dtype of A and B.
    """

    def __init__(self, layers: Sequence[nn.Linear | LoraLinear]) -> None:
        bases: list[Any] = [
            layer.base if isinstance(layer, LoraLinear) else layer for layer in layers
        ]
        self._frozen = [base.weight for base in bases]
        self.is_quantised = is_quantised(bases[0])
        # (out, in); in 4 bits there is none, but a new one at each use
        self._weight = None if self.is_quantised else _concatenated(self._frozen)
        self.bias = None if bases[0].bias is None else _concatenated([base.bias for base in bases])
        self.row_scale = _row_scale(layers, bases)
        self.lora: list[LoraSlice] = []
        column = rank = 0
        for layer, base in zip(layers, bases, strict=True):
            columns = slice(column, column + base.out_features)
            if isinstance(layer, LoraLinear):
                ranks = slice(rank, rank + layer.a.shape[0])
                self.lora.append(LoraSlice(columns, ranks, layer))
                rank = ranks.stop
            column = columns.stop

    @property
    def weight(self) -> torch.Tensor:
        """W (out, in); that of layers in 4 bits is converted anew at each use."""
        if self._weight is not None:
            return self._weight
        from bitsandbytes.functional import dequantize_4bit

        parts = [dequantize_4bit(part, part.quant_state) for part in self._frozen]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def trainable(self) -> list[nn.Parameter]:
        """A and B of each layer."""
        return list(chain.from_iterable((layer.a, layer.b) for *_, layer in self.lora))

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, in) to (N, out), plus a residual (N, out) if given, and to scale · A x (N, ranks)."""
        if self.row_scale is not None:
            return self._forward_scaled(x, self.row_scale, residual)
        dtype, wide = x.dtype, matmul_dtype(x)
        x, bias = x.to(wide), cast_optional(self.bias, wide)
        add_last = bool(self.lora) and is_low_precision(wide)
        first = None if add_last else cast_optional(residual, wide)
        out = linear(x, self.weight.to(wide), bias, first)
        if not self.lora:
            return out.to(dtype), out.new_empty(0, dtype=dtype)
        low_rank = x @ self._stacked_a(wide).t()
        for columns, ranks, layer in self.lora:
            if layer.scale != 1:
                low_rank[:, ranks].mul_(layer.scale)
            out[:, columns].addmm_(low_rank[:, ranks], layer.b.to(wide).t())
        if add_last and residual is not None:
            out.add_(residual)
        return out.to(dtype), low_rank.to(dtype)

    def _forward_scaled(
        self, x: torch.Tensor, row_scale: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`forward` of frozen DoRA layers, whose B has its scale already."""
        dtype, wide = x.dtype, matmul_dtype(x)
        x = x.to(wide)
        low_rank = x @ self._stacked_a(wide).t()
        update = x.new_zeros(len(x), len(self.weight))
        for columns, ranks, layer in self.lora:
            update[:, columns] = low_rank[:, ranks] @ layer.b.to(wide).t()
        base = product(x, self.weight.to(wide).t(), row_scale.dtype)
        out = scale_rows(base, row_scale, update, self.bias, residual)
        return out.to(dtype), low_rank.to(dtype)

    def backward(
        self, gradient: torch.Tensor, x: torch.Tensor, low_rank: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the gradients w.r.t. x and w.r.t. `trainable`."""
        dtype, wide = x.dtype, matmul_dtype(x)
        gradient = gradient.to(wide)
        dparameters, dlow_rank = self.parameter_gradients(gradient, x, low_rank)
        dx = linear(gradient, self.weight.to(wide).t())
        if self.lora:
            dx = dx.addmm_(dlow_rank, self._stacked_a(wide))
        return dx.to(dtype), dparameters

    def parameter_gradients(
        self, gradient: torch.Tensor, x: torch.Tensor, low_rank: torch.Tensor
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the gradients w.r.t. `trainable`, and (N, ranks) w.r.t. A x in matmul dtype."""
        wide = matmul_dtype(x)
        gradient, x, low_rank = gradient.to(wide), x.to(wide), low_rank.to(wide)
        dlow_rank = torch.empty_like(low_rank)
        if not self.lora:
            return [], dlow_rank
        for columns, ranks, layer in self.lora:
            torch.mm(gradient[:, columns], layer.b.to(wide), out=dlow_rank[:, ranks])
            if layer.scale != 1:
                dlow_rank[:, ranks].mul_(layer.scale)
        da = dlow_rank.t() @ x
        gradients = []
        for columns, ranks, layer in self.lora:
            db = gradient[:, columns].t() @ low_rank[:, ranks]
            gradients += [da[ranks].to(layer.a.dtype), db.to(layer.b.dtype)]
        return gradients, dlow_rank

    def _stacked_a(self, dtype: torch.dtype) -> torch.Tensor:
        """(ranks, in)."""
        sides: list[torch.Tensor] = [layer.a for *_, layer in self.lora]
        return (sides[0] if len(sides) == 1 else torch.cat(sides)).to(dtype)


def product(first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix product in a dtype, rounded to that of the inputs only if it must be."""
    if first.dtype == dtype:
        return first @ second
    if HAS_OUT_DTYPE and first.is_cuda and dtype == torch.float32:
        return torch.mm(first, second, out_dtype=dtype)
    return (first @ second).to(dtype)


def is_quantised(layer: Any) -> bool:
    """Return true for a linear layer of bitsandbytes in 4 bits."""
    return type(layer).__name__ == "Linear4bit"


def is_low_precision(dtype: torch.dtype) -> bool:
    """Return true if B A x, small at first, is lost in rounding when added to a residual stream.

    If it is first added to W x, and their sum to the stream, most of it survives
    (docs/benchmarks.md).
    """
    return dtype.itemsize < torch.float32.itemsize


def scale_rows(
    base: torch.Tensor, row_scale: torch.Tensor, *addends: torch.Tensor | None
) -> torch.Tensor:
    """Return W x times the scale of the rows of W, plus addends, in the dtype of the scale.

    It is then rounded once: a scale near 1 would be lost in rounding.
    """
    out = base * row_scale
    for addend in addends:
        if addend is not None:
            out.add_(addend)
    return out


def cast_optional(x: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Cast a tensor, if there is one."""
    return None if x is None else x.to(dtype)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    onednn: bool | None = None,
) -> torch.Tensor:
    """x W^T + b + residual, with W (out, in) contiguous or transposed.

    `onednn`: use oneDNN for as many rows as make whole blocks; by default where it is faster.
    """
    onednn = prefers_onednn(x) if onednn is None else onednn
    blocked = len(x) - len(x) % ONEDNN_ROW_BLOCK if onednn else 0
    if blocked == len(x) > 0:
        return linear_onednn(x, weight, bias, residual)
    if blocked:
        out = x.new_empty(len(x), len(weight))
        for rows, product in (
            (slice(blocked), linear_onednn),
            (slice(blocked, None), linear_torch),
        ):
            added = None if residual is None else residual[rows]
            out[rows] = product(x[rows], weight, bias, added)
        return out
    return linear_torch(x, weight, bias, residual)


def linear_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> torch.Tensor:
    """x W^T + b + residual by torch's own products."""
    if bias is None:
        return x @ weight.t() if residual is None else torch.addmm(residual, x, weight.t())
    out = torch.addmm(bias, x, weight.t())
    return out if residual is None else out.add_(residual)


def linear_onednn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> torch.Tensor:
    """x W^T + b + residual by oneDNN, as torch.compile calls it, with W plain or reordered."""
    out: torch.Tensor
    if residual is None:
        out = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    else:
        out = torch.ops.mkldnn._linear_pointwise.binary(x, residual, weight, bias, "add")
    return out


def _row_scale(
    layers: Sequence[nn.Linear | LoraLinear], bases: Sequence[nn.Linear]
) -> torch.Tensor | None:
    """(out,) the scale of the rows of frozen DoRA layers, 1 for others; None without DoRA."""
    scales = [layer.row_scale if isinstance(layer, LoraLinear) else None for layer in layers]
    for layer, scale in zip(layers, scales, strict=True):
        if isinstance(layer, DoraLinear) and scale is None:
            raise TypeError("DoRA in training has no fused layers; freeze it, or use its modules")
    given = next((scale for scale in scales if scale is not None), None)
    if given is None:
        return None
    rows = [
        given.new_ones(base.out_features) if scale is None else scale
        for scale, base in zip(scales, bases, strict=True)
    ]
    return torch.cat(rows)


def _concatenated(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors; a view, without a copy, after `make_contiguous`."""
    first = parts[0].detach()
    end, storage = first.storage_offset(), first.untyped_storage().data_ptr()
    for part in parts:
        adjacent = part.untyped_storage().data_ptr() == storage and part.storage_offset() == end
        if not (adjacent and part.is_contiguous()):
            return torch.cat([part.detach() for part in parts])
        end += part.numel()
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())

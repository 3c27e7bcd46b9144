"""Linear layers whose weights no longer change, tuned for the few rows of decoding."""

from __future__ import annotations

from math import gcd

import torch

from adapters.peft.model.decoder import Decoder
from adapters.peft.model.linear import (
    FusedLinear,
    cast_optional,
    is_low_precision,
    linear_onednn,
    product,
    scale_rows,
)
from adapters.peft.runtime.cpu import has_onednn, is_intel, matmul_dtype

# Up to this many rows, the time is that of reading the weights (a GEMV), so packing gains nothing.
MAX_GEMV_ROWS = 2
MAX_FP32_LORA_ROWS = 8  # up to this many rows, LoRA products are computed in float32
# Up to this many rows, several cores take parts of the weights; with more, transposing the output
# would take too long.
MAX_SPLIT_ROWS = 128
PACKED_FOR_ROWS = 32  # the batch size that oneDNN packs the weights for


class FrozenLinear(FusedLinear):
    """y = W x + b + B A x with frozen A and B; on a CPU, W is a copy packed for some tens of rows.

    Where products are computed in float32, so is the copy, with B A merged into it. In bfloat16
    the merge would be lost in rounding, so B A stays separate, and so does DoRA's scale of rows.
    The plain weights, which few rows are multiplied by, are those of the base model.
    """

    def __init__(self, fused: FusedLinear) -> None:
        weight, self.row_scale = fused.weight, fused.row_scale
        self._compute_dtype = matmul_dtype(weight)
        on_cpu = weight.device.type == "cpu"
        can_pack = self._compute_dtype in (torch.float32, torch.bfloat16)
        packs = on_cpu and has_onednn() and can_pack
        self._unpacked_scale: torch.Tensor | None = None  # of rows, where the copy contains it
        if self.row_scale is not None and not is_low_precision(self._compute_dtype):
            if packs:
                self._unpacked_scale = self.row_scale
            else:
                weight = _scaled(weight, self.row_scale, self._compute_dtype)
            self.row_scale = None
        self._weight = weight
        self.lora = []
        self.bias = cast_optional(fused.bias, self._compute_dtype)
        self._lora = _lora_matrices(fused, self._compute_dtype)  # (in, ranks), (ranks, out)
        self._packed = self._pack() if packs else None
        in_bfloat16 = self._packed is not None and self._compute_dtype == torch.bfloat16
        self._lora_fp32 = _lora_matrices(fused, torch.float32) if in_bfloat16 else None
        self._max_gemv_rows = MAX_GEMV_ROWS if self.weight.dtype == torch.float32 else 0
        self._splits = on_cpu and not is_intel()
        self._empty = self.weight.new_empty(0)

    def _pack(self) -> torch.Tensor:
        whole = self.weight.to(self._compute_dtype)
        if self._unpacked_scale is not None:
            whole = _scaled(self.weight, self._unpacked_scale, self._compute_dtype)
        if self._compute_dtype == torch.float32 and self._lora is not None:
            whole = torch.addmm(whole, self._lora[1].t(), self._lora[0].t())
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(whole, PACKED_FOR_ROWS)
        return packed

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Map (N, in) to (N, out), added to `residual` if given; nothing is saved for backward."""
        dtype = x.dtype
        x = x.to(self._compute_dtype)
        residual = cast_optional(residual, self._compute_dtype)
        if self.row_scale is not None:
            return self._scale_rows(x, self.row_scale, residual).to(dtype), self._empty
        add_last = self._lora is not None and is_low_precision(self._compute_dtype)
        first = None if add_last else residual
        if self._packed is None or len(x) <= self._max_gemv_rows:
            out = self._plain(x, first)
        else:
            out = linear_onednn(x, self._packed, self.bias, first)
            if self._lora is not None and self._compute_dtype != torch.float32:
                self._add_lora(out, x, *self._lora)
        if add_last and residual is not None:
            out = out + residual
        return out.to(dtype), self._empty

    def _scale_rows(
        self, x: torch.Tensor, row_scale: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """Return W x times the scale of its rows, plus b, B A x and a residual."""
        if self._packed is None:
            base = product(x, self.weight.t(), row_scale.dtype)
        else:
            base = linear_onednn(x, self._packed, None, None)
        update = None if self._lora is None else (x @ self._lora[0]) @ self._lora[1]
        return scale_rows(base, row_scale, update, self.bias, residual)

    def _add_lora(
        self, out: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> None:
        """Add B A x; with few rows in float32, which is several times as fast there."""
        if len(x) > MAX_FP32_LORA_ROWS or self._lora_fp32 is None:
            out.addmm_(x @ a, b)
        else:
            out.add_((x.float() @ self._lora_fp32[0]) @ self._lora_fp32[1])

    def _plain(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Compute W x on top of its addends: with few rows every operation counts."""
        weight = self.weight.to(self._compute_dtype)
        added = residual
        if self.bias is not None:
            added = self.bias.expand(len(x), -1) if residual is None else residual + self.bias
        if self._lora is not None:
            low_rank = x @ self._lora[0]
            b = self._lora[1]
            added = low_rank @ b if added is None else torch.addmm(added, low_rank, b)
        if self._unpacked_scale is not None:
            out = self._times(x, weight, None) * self._unpacked_scale
            return out if added is None else out.add_(added)
        return self._times(x, weight, added)

    def _times(
        self, x: torch.Tensor, weight: torch.Tensor, added: torch.Tensor | None
    ) -> torch.Tensor:
        max_rows = MAX_SPLIT_ROWS if torch.get_num_threads() > 1 else MAX_GEMV_ROWS
        if self._splits and len(x) <= max_rows:
            return _split_gemv(x, weight, added)
        return x @ weight.t() if added is None else torch.addmm(added, x, weight.t())


def freeze_layers(decoder: Decoder) -> None:
    """Replace the linear layers of a decoder by FrozenLinear."""
    for layer in decoder.layers:
        layer.qkv_proj, layer.o_proj = FrozenLinear(layer.qkv_proj), FrozenLinear(layer.o_proj)
        layer.gate_up_proj, layer.down_proj = (
            FrozenLinear(layer.gate_up_proj),
            FrozenLinear(layer.down_proj),
        )


def _scaled(weight: torch.Tensor, row_scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (weight.to(row_scale.dtype) * row_scale[:, None]).to(dtype)


def _lora_matrices(
    fused: FusedLinear, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return A and B of all LoRA layers as one matrix each: (in, ranks), (ranks, out)."""
    if not fused.lora:
        return None
    a = torch.cat([layer.a.detach() for *_, layer in fused.lora]).to(dtype).t()
    b = a.new_zeros(a.shape[1], len(fused.weight))  # 0 between different layers
    for columns, ranks, layer in fused.lora:
        b[ranks, columns] = (layer.b.detach() * layer.scale).t().to(b.dtype)
    return a, b


def _split_gemv(x: torch.Tensor, weight: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
    """Map (N, in) to (N, out) with part of the weights on each core.

    On processors other than Intel's, MKL's plain product uses one core only. One core reads the
    weights for two rows in less time than for one.
    """
    parts = gcd(len(weight), torch.get_num_threads())
    rows = x if parts > 1 or len(x) > 1 else torch.cat([x, x])
    pieces, columns = weight.view(parts, -1, weight.shape[1]), rows.t().expand(parts, -1, -1)
    if added is None:
        out = torch.bmm(pieces, columns)
    else:
        out = torch.baddbmm(added.t().view(parts, -1, len(x)), pieces, columns)
    if len(x) == 1:
        # contiguous, because with the strides of a column it would be treated as one
        return out[..., 0].contiguous().view(1, -1)
    return out.view(-1, len(x)).t().contiguous()

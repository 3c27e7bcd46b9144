"""Weights of a decoder in the form that decoding multiplies by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adapters.peft.model.decoder import Decoder
from adapters.peft.model.elementwise import RMSNorm
from adapters.peft.model.linear import FusedLinear, product, scale_rows
from adapters.peft.model.llama_layer import Layer
from adapters.peft.sampling.kv_cache import HeadLayout
from adapters.peft.sampling.paged.graphs import SideStream

MIN_RANK = 16  # smallest inner size of a product on tensor cores


@dataclass(frozen=True)
class HeadNormWeights:
    """RMSNorms of queries and keys, head by head, before they are rotated."""

    weights: torch.Tensor  # (2, D), of queries and of keys
    eps: float


@dataclass(frozen=True)
class Product:
    """W x + b, and the low-rank part of a LoRA product, which the next kernel completes.

    Column c of part p is out[c] + the sum over k of low_rank[p · rank + k] · b[k, c]. The sum is
    thus rounded once, with all that the kernel computes.
    """

    out: torch.Tensor  # (R, n)
    low_rank: torch.Tensor | None = None  # (R, parts · rank)
    b: torch.Tensor | None = None  # (rank, n), times scale
    parts: tuple[int, ...] = ()  # columns of each part

    @property
    def rank(self) -> int:
        """The rank of each part; 0 without LoRA."""
        return 0 if self.b is None else len(self.b)


class PagedLinear:
    """Layers side by side, with LoRA weights of equal rank: a smaller one is padded with zeros."""

    def __init__(self, fused: FusedLinear, parts: Sequence[int]) -> None:
        """`parts`: columns of each layer."""
        self._weight_t = fused.weight.t()
        self._bias, self._row_scale = fused.bias, fused.row_scale
        self._parts = tuple(parts)
        self._a_t: torch.Tensor | None = None
        self._b: torch.Tensor | None = None
        if fused.lora:
            self._set_lora(fused)

    def _set_lora(self, fused: FusedLinear) -> None:
        like, lora = fused.weight, fused.lora
        largest = max(len(layer.a) for *_, layer in lora)
        rank = max(MIN_RANK, 1 << (largest - 1).bit_length())
        a = like.new_zeros(len(self._parts) * rank, like.shape[1])
        b = like.new_zeros(rank, len(like))
        starts = [sum(self._parts[:place]) for place in range(len(self._parts))]
        for columns, _, layer in lora:
            first, size = starts.index(columns.start) * rank, len(layer.a)
            a[first : first + size] = layer.a.detach()
            b[:size, columns] = (layer.b.detach() * layer.scale).t()
        self._a_t, self._b = a.t(), b

    def forward(self, x: torch.Tensor, side: SideStream) -> Product:
        """Map (R, in) to a Product, whose low-rank part is computed on the side."""
        if self._a_t is None:
            return Product(self._whole(x), parts=self._parts)
        a_t, low_rank = self._a_t, x.new_empty(len(x), self._a_t.shape[1])
        side.run(lambda: torch.mm(x, a_t, out=low_rank))
        out = self._whole(x)
        side.join()
        return Product(out, low_rank, self._b, self._parts)

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        if self._row_scale is not None:
            base = product(x, self._weight_t, self._row_scale.dtype)
            return scale_rows(base, self._row_scale, self._bias).to(x.dtype)
        if self._bias is None:
            return torch.mm(x, self._weight_t)
        return torch.addmm(self._bias, x, self._weight_t)


class PagedLayer:
    """The weights of one layer."""

    def __init__(self, layer: Layer) -> None:
        heads, kv_heads, width = layer.heads, layer.kv_heads, layer.head_dim
        self.heads = HeadLayout(heads, kv_heads, width, layer.scale)
        kv_columns = kv_heads * width
        self.qkv_proj = PagedLinear(layer.qkv_proj, (heads * width, kv_columns, kv_columns))
        self.head_norms: HeadNormWeights | None = None
        if layer.head_norms is not None:
            self.head_norms = HeadNormWeights(layer.head_norms.weights, layer.head_norms.eps)
        self.o_proj = PagedLinear(layer.o_proj, (len(layer.o_proj.weight),))
        inner = len(layer.gate_up_proj.weight) // 2
        self.gate_up_proj = PagedLinear(layer.gate_up_proj, (inner, inner))
        self.down_proj = PagedLinear(layer.down_proj, (len(layer.down_proj.weight),))
        self.input_norm: RMSNorm = layer.input_norm
        self.post_attention_norm: RMSNorm = layer.post_attention_norm


class PagedWeights:
    """The weights of a decoder; those of the base are shared with it."""

    def __init__(self, decoder: Decoder) -> None:
        self.layers = [PagedLayer(layer) for layer in decoder.layers]
        self.norm = decoder.norm
        self.embed = decoder.embed
        self.rope = decoder.rope
        weight = decoder.layers[0].qkv_proj.weight
        self.device, self.dtype, self.width = weight.device, weight.dtype, weight.shape[1]

"""The attention of one layer of a packed layout: an interface, and attention in tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from adapters.peft.batching.packed_layout import PackedLayout
from adapters.peft.model import tiled_attention


class LayerAttention(Protocol):
    """Causal attention of a packed layout, and its gradient.

    `qkv` has queries, keys and values (N, H + 2 · K, D), with H a multiple of K. `prefix_kv`
    (P, 2 · K, D) has the keys and values of the slots N to N + P - 1.
    """

    def forward(
        self, qkv: torch.Tensor, prefix_kv: torch.Tensor | None, layout: PackedLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs (N, H, D), and what the gradient needs beside them: `lse`."""
        ...

    def backward(
        self,
        gradient: torch.Tensor,
        qkv: torch.Tensor,
        prefix_kv: torch.Tensor | None,
        out: torch.Tensor,
        lse: torch.Tensor,
        layout: PackedLayout,
        dkv: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the gradients w.r.t. `qkv` and `prefix_kv`.

        `dkv` (N, 2 · K, D) is added to that of the keys and values.
        """
        ...


@dataclass(frozen=True)
class TiledLayerAttention:
    """Attention in tiles, in any dtype on any device."""

    kv_heads: int
    scale: float

    def forward(
        self, qkv: torch.Tensor, prefix_kv: torch.Tensor | None, layout: PackedLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        split = self._split(qkv, prefix_kv)
        return tiled_attention.forward(*split, layout, self.scale), qkv.new_empty(0)

    def backward(
        self,
        gradient: torch.Tensor,
        qkv: torch.Tensor,
        prefix_kv: torch.Tensor | None,
        out: torch.Tensor,
        lse: torch.Tensor,
        layout: PackedLayout,
        dkv: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        count, heads = len(qkv), out.shape[1]
        dqkv = torch.empty_like(qkv)
        split, dquery = self._split(qkv, prefix_kv), dqkv[:, :heads]
        dkey_value = torch.cat(
            tiled_attention.backward(gradient, *split, out, layout, self.scale, dquery), 1
        )
        dkv_here = dkey_value[:count]
        dqkv[:, heads:] = dkv_here if dkv is None else dkv_here + dkv
        return dqkv, None if prefix_kv is None else dkey_value[count:].to(prefix_kv.dtype)

    def _split(
        self, qkv: torch.Tensor, prefix_kv: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, and the keys and values of all slots."""
        heads = qkv.shape[1] - 2 * self.kv_heads
        query, key, value = torch.split(qkv, [heads, self.kv_heads, self.kv_heads], 1)
        if prefix_kv is None:
            return query, key, value
        prefix_key, prefix_value = prefix_kv.chunk(2, 1)
        return query, torch.cat([key, prefix_key]), torch.cat([value, prefix_value])

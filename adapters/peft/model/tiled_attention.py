"""Causal attention over a packed layout, tile by tile, with a hand-written gradient.

Plain matrix products, in which the query heads that share a key head are stacked so that keys are
not repeated: on a CPU faster than torch's kernel, which also computes the scores above the
diagonal, and takes ten times as long for the gradient in bfloat16 (docs/benchmarks.md). As in
FlashAttention (Dao et al., 2022, arXiv:2205.14135) no tile's probabilities are saved: they are
recomputed in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch

from adapters.peft.batching.packed_layout import PackedLayout, TileBatch
from adapters.peft.runtime.cpu import matmul_dtype


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: PackedLayout, scale: float
) -> torch.Tensor:
    """Query (N, H, D), key (M, K, D), value (M, K, V), with H a multiple of K, to (N, H, V).

    M is at least N: keys and values that have no query here have the slots N to M - 1.
    """
    dtype, wide = query.dtype, matmul_dtype(query)
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    out = query.new_empty(*query.shape[:2], value.shape[-1])
    for tiles in layout.tiles:
        queries = _gather_queries(query, tiles, key.shape[1])
        weights = _softmax_weights(queries, _gather_keys(key, tiles), tiles, key.shape[1], scale)
        _scatter_queries(out, torch.bmm(weights, _gather_keys(value, tiles)), tiles)
    return out.to(dtype)


def backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    layout: PackedLayout,
    scale: float,
    dquery: torch.Tensor,
    by_index: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the gradient w.r.t. query into `dquery`; return those w.r.t. key and value.

    The latter are in float32 or better, because many tiles add to them: in bfloat16 late terms
    would be lost. Tiles are added run by run on a CPU and by index elsewhere, unless `by_index` is
    given.
    """
    by_index = query.device.type != "cpu" if by_index is None else by_index
    kv_heads, wide = key.shape[1], matmul_dtype(query)
    gradient, query, key, value, out = (x.to(wide) for x in (gradient, query, key, value, out))
    accumulated = torch.promote_types(wide, torch.float32)
    dkey = torch.zeros(key.shape, dtype=accumulated, device=key.device)
    dvalue = torch.zeros(value.shape, dtype=accumulated, device=value.device)
    inner = torch.linalg.vecdot(gradient, out)[..., None]  # (N, H, 1)
    for tiles in layout.tiles:
        queries = _gather_queries(query, tiles, kv_heads)
        keys, values = _gather_keys(key, tiles), _gather_keys(value, tiles)
        dout = _gather_queries(gradient, tiles, kv_heads, zero_padding=True)
        delta = _gather_queries(inner, tiles, kv_heads, zero_padding=True)
        weights = _softmax_weights(queries, keys, tiles, kv_heads, scale)
        _add_to_keys(dvalue, torch.bmm(weights.transpose(1, 2), dout), tiles, by_index)
        dscores = torch.bmm(dout, values.transpose(1, 2)).sub_(delta).mul_(weights)
        _scatter_queries(dquery, torch.bmm(dscores, keys).mul_(scale), tiles)
        dscores_t = dscores.transpose(1, 2)
        _add_to_keys(dkey, torch.bmm(dscores_t, queries).mul_(scale), tiles, by_index)
    return dkey, dvalue


class TiledAttention(torch.autograd.Function):
    """`forward` and `backward` for models whose other parts are left to autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layout: PackedLayout,
        scale: float,
    ) -> torch.Tensor:
        out = forward(query, key, value, layout, scale)
        ctx.save_for_backward(query, key, value, out)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out = ctx.saved_tensors
        dquery = torch.empty_like(query)
        dkey, dvalue = backward(gradients[0], query, key, value, out, ctx.layout, ctx.scale, dquery)
        return dquery, dkey.to(key.dtype), dvalue.to(value.dtype), None, None


def _softmax_weights(
    queries: torch.Tensor, keys: torch.Tensor, tiles: TileBatch, kv_heads: int, scale: float
) -> torch.Tensor:
    """(B · K, H / K · t, S)."""
    heads_per_kv = queries.shape[1] // tiles.query_slots.shape[1]
    bias = tiles.bias(kv_heads, heads_per_kv, queries.dtype)
    return torch.softmax(torch.baddbmm(bias, queries, keys.transpose(1, 2), alpha=scale), -1)


def _gather_queries(
    x: torch.Tensor, tiles: TileBatch, kv_heads: int, *, zero_padding: bool = False
) -> torch.Tensor:
    """(N, H, D) to (B · K, H / K · t, D); padding is 0 if `zero_padding`, else any token."""
    count, queries = tiles.query_slots.shape
    gathered = x.index_select(0, tiles.query_slots.view(-1))
    gathered = gathered.view(count, queries, kv_heads, -1, x.shape[-1])
    if zero_padding and tiles.query_padding is not None:
        gathered.masked_fill_(tiles.query_padding[:, :, None, None, None], 0)
    return gathered.permute(0, 2, 3, 1, 4).reshape(count * kv_heads, -1, x.shape[-1])


def _gather_keys(x: torch.Tensor, tiles: TileBatch) -> torch.Tensor:
    """(N, K, D) to (B · K, S, D)."""
    count, keys = tiles.key_slots.shape
    gathered = x.index_select(0, tiles.key_slots.view(-1)).view(count, keys, *x.shape[1:])
    return gathered.transpose(1, 2).reshape(-1, keys, x.shape[-1])


def _scatter_queries(x: torch.Tensor, values: torch.Tensor, tiles: TileBatch) -> None:
    """Copy (B · K, H / K · t, D) without padding into (N, H, D)."""
    count, queries = tiles.query_slots.shape
    width = x.shape[-1]
    heads_per_kv = x.shape[1] * count // len(values)
    values = values.view(count, -1, heads_per_kv, queries, width).permute(0, 3, 1, 2, 4)
    values = values.reshape(count * queries, -1, width)
    if len(values) != len(tiles.real_queries):
        values = values.index_select(0, tiles.real_queries)
    x.index_copy_(0, tiles.real_query_slots, values.to(x.dtype))


def _add_to_keys(x: torch.Tensor, values: torch.Tensor, tiles: TileBatch, by_index: bool) -> None:
    """Add (B · K, S, D) to (N, K, D), in the same order each time."""
    count, keys = tiles.key_slots.shape
    values = values.view(count, -1, keys, x.shape[-1]).transpose(1, 2)
    add = _add_by_index if by_index else _add_by_run
    add(x, values, tiles)


def _add_by_run(x: torch.Tensor, values: torch.Tensor, tiles: TileBatch) -> None:
    """Add (B, S, K, D) run by run: on a CPU adding by index takes several times as long."""
    for tile, first, slot, length in tiles.key_runs:
        x[slot : slot + length].add_(values[tile, first : first + length])


def _add_by_index(x: torch.Tensor, values: torch.Tensor, tiles: TileBatch) -> None:
    """Add (B, S, K, D) in one operation, which sorts.

    A CUDA device would take as long for each of many small operations.
    """
    indices, slots = tiles.real_keys
    real = values.flatten(0, 1).index_select(0, indices).to(x.dtype)
    x.index_put_((slots,), real, accumulate=True)

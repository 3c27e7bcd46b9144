"""Causal attention over a layout, tile by tile, with the gradient by hand: no tile's probabilities
are kept.

Plain matrix products, in which the query heads that share a key head are stacked so that keys are
not repeated: on a CPU faster than torch's own kernel, which computes what lies above the diagonal
too, and takes ten times as long as this for the gradient in bfloat16 (docs/benchmarks.md). As in
FlashAttention (Dao et al., 2022, arXiv:2205.14135) the probabilities are computed again on the way
back.
"""

from __future__ import annotations

from typing import Any

import torch

from adapters.peft.batching.packed_layout import Layout, Tiles
from adapters.peft.runtime.cpu import multiplied_in


def forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float
) -> torch.Tensor:
    """Query (N, H, D), key (M, K, D) and value (M, K, V) with H a multiple of K, to (N, H, V); what
    N has no queries of, lies behind.
    """
    narrow, wide = query.dtype, multiplied_in(query)
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    out = query.new_empty(*query.shape[:2], value.shape[-1])
    for tiles in layout.tiles:
        queries, keys = _queries(query, tiles, key.shape[1]), _keys(key, tiles)
        weights = _weights(queries, keys, tiles, key.shape[1], scale)
        _put(out, torch.bmm(weights, _keys(value, tiles)), tiles)
    return out.to(narrow)


def backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    layout: Layout,
    scale: float,
    dquery: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient by query goes into a tensor of its shape; returns those by key and value, in
    float32 or better.

    Many tiles add to those: in bfloat16 what comes late would be lost.
    """
    groups, wide = key.shape[1], multiplied_in(query)
    gradient, query, key, value, out = (x.to(wide) for x in (gradient, query, key, value, out))
    dkey, dvalue = (
        torch.zeros(x.shape, dtype=torch.promote_types(wide, torch.float32), device=x.device)
        for x in (key, value)
    )
    inner = torch.linalg.vecdot(gradient, out)[..., None]  # (N, H, 1)
    for tiles in layout.tiles:
        queries, keys, values = (
            _queries(query, tiles, groups),
            _keys(key, tiles),
            _keys(value, tiles),
        )
        down, drop = (
            _queries(gradient, tiles, groups, blank=True),
            _queries(inner, tiles, groups, blank=True),
        )
        weights = _weights(queries, keys, tiles, groups, scale)
        _add(dvalue, torch.bmm(weights.transpose(1, 2), down), tiles)
        slopes = torch.bmm(down, values.transpose(1, 2)).sub_(drop).mul_(weights)
        _put(dquery, torch.bmm(slopes, keys).mul_(scale), tiles)
        _add(dkey, torch.bmm(slopes.transpose(1, 2), queries).mul_(scale), tiles)
    return dkey, dvalue


class TiledAttention(torch.autograd.Function):
    """`forward` and `backward` for a model whose other parts are left to autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layout: Layout,
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


def _weights(
    queries: torch.Tensor, keys: torch.Tensor, tiles: Tiles, groups: int, scale: float
) -> torch.Tensor:
    """(B · K, H / K · t, S)."""
    heads = queries.shape[1] // tiles.queries.shape[1]
    bias = tiles.bias(groups, heads, queries.dtype)
    return torch.softmax(torch.baddbmm(bias, queries, keys.transpose(1, 2), alpha=scale), -1)


def _queries(x: torch.Tensor, tiles: Tiles, groups: int, *, blank: bool = False) -> torch.Tensor:
    """(N, H, D) to (B · K, H / K · t, D); where padded, 0 if `blank`, else of any token."""
    rows, count = tiles.queries.shape
    found = x.index_select(0, tiles.queries.view(-1)).view(rows, count, groups, -1, x.shape[-1])
    if blank and tiles.padded is not None:
        found.masked_fill_(tiles.padded[:, :, None, None, None], 0)
    return found.permute(0, 2, 3, 1, 4).reshape(rows * groups, -1, x.shape[-1])


def _keys(x: torch.Tensor, tiles: Tiles) -> torch.Tensor:
    """(N, K, D) to (B · K, S, D)."""
    rows, count = tiles.keys.shape
    found = x.index_select(0, tiles.keys.view(-1)).view(rows, count, *x.shape[1:])
    return found.transpose(1, 2).reshape(-1, count, x.shape[-1])


def _put(x: torch.Tensor, found: torch.Tensor, tiles: Tiles) -> None:
    """(B · K, H / K · t, D) into (N, H, D)."""
    rows, count = tiles.queries.shape
    width = x.shape[-1]
    heads = x.shape[1] * rows // len(found)
    found = (
        found.view(rows, -1, heads, count, width)
        .permute(0, 3, 1, 2, 4)
        .reshape(rows * count, -1, width)
    )
    found = found if len(found) == len(tiles.real) else found.index_select(0, tiles.real)
    x.index_copy_(0, tiles.lie, found.to(x.dtype))


def _add(x: torch.Tensor, found: torch.Tensor, tiles: Tiles) -> None:
    """(B · K, S, D) onto (N, K, D), in the same order each time."""
    rows, count = tiles.keys.shape
    found = found.view(rows, -1, count, x.shape[-1]).transpose(1, 2)
    (_add_by_run if x.device.type == "cpu" else _add_by_index)(x, found, tiles)


def _add_by_run(x: torch.Tensor, found: torch.Tensor, tiles: Tiles) -> None:
    """(B, S, K, D): on a CPU adding by index takes several times as long."""
    for row, first, lies, length in tiles.runs:
        x[lies : lies + length].add_(found[row, first : first + length])


def _add_by_index(x: torch.Tensor, found: torch.Tensor, tiles: Tiles) -> None:
    """(B, S, K, D): one operation, which sorts, where a CUDA device would take as long for each of
    many small ones.
    """
    at, lie = tiles.known
    x.index_put_((lie,), found.flatten(0, 1).index_select(0, at).to(x.dtype), accumulate=True)

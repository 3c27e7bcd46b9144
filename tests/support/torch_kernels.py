"""Kernels of the local engine's GPU path in plain operations: references for any device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from adapters.peft.batching.attention_spans import Spans
from adapters.peft.model.varlen_attention import Gradients


class TorchKernel:
    """A VarlenKernel in plain operations, span by span, in any dtype."""

    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        spans: Spans,
        scale: float,
        *,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(query.dtype, torch.float32)
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        lse = query.new_full((query.shape[1], len(query)), float("inf"), dtype=wide)
        key, value = key_value.chunk(2, 1)
        for queries, keys in _intervals(spans):
            scores = _scores(query[queries], key[keys], scale, causal=causal)
            lse[:, queries] = scores.logsumexp(-1)
            values = _repeated(value[keys], query.shape[1]).to(wide)
            out[queries] = (scores.softmax(-1) @ values).transpose(0, 1).to(out.dtype)
        return out, lse

    def backward(
        self,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key_value: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        spans: Spans,
        scale: float,
        *,
        causal: bool,
    ) -> Gradients:
        heads, wide = query.shape[1], lse.dtype
        key, value = key_value.chunk(2, 1)
        dquery, dkey, dvalue = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(key)
        delta = (gradient.to(wide) * out.to(wide)).sum(-1).t()[..., None]  # (H, N, 1)
        for queries, keys in _intervals(spans):
            scores = _scores(query[queries], key[keys], scale, causal=causal)
            probs = (scores - lse[:, queries, None]).exp()
            dout = gradient[queries].transpose(0, 1).to(wide)
            dprobs = dout @ _repeated(value[keys], heads).to(wide).transpose(1, 2)
            dscores = probs * (dprobs - delta[:, queries]) * scale
            dquery[queries] = (
                (dscores @ _repeated(key[keys], heads).to(wide)).transpose(0, 1).to(query.dtype)
            )
            queries_wide = query[queries].transpose(0, 1).to(wide)
            dkey[keys] = _sum_heads(dscores.transpose(1, 2) @ queries_wide, dkey[keys])
            dvalue[keys] = _sum_heads(probs.transpose(1, 2) @ dout, dvalue[keys])
        return dquery, dkey, dvalue


class TorchLogitKernels:
    """LogitKernels in plain operations."""

    def logsumexp(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).logsumexp(-1)

    def softmax_gradient_(
        self, logits: torch.Tensor, lse: torch.Tensor, totals: torch.Tensor
    ) -> None:
        logits.copy_((logits - lse[:, None]).exp() * -totals[:, None])


def _intervals(spans: Spans) -> Iterator[tuple[slice, slice]]:
    """Yield the slices of queries and keys of each span that has keys."""
    query_starts, key_starts = spans.query_starts.tolist(), spans.key_starts.tolist()
    for (first, end), (first_key, end_key) in zip(
        pairwise(query_starts), pairwise(key_starts), strict=True
    ):
        if end_key > first_key:
            yield slice(first, end), slice(first_key, end_key)


def _scores(query: torch.Tensor, key: torch.Tensor, scale: float, *, causal: bool) -> torch.Tensor:
    """(t, H, D) and (s, K, D) to (H, t, s) in float32 or better, -inf where masked."""
    wide = torch.promote_types(query.dtype, torch.float32)
    keys = _repeated(key, query.shape[1]).to(wide)
    scores = query.transpose(0, 1).to(wide) @ keys.transpose(1, 2) * scale
    if causal:
        future = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores


def _repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(s, K, D) to (H, s, D)."""
    return x.transpose(0, 1).repeat_interleave(heads // x.shape[1], 0)


def _sum_heads(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(H, s, D) to (s, K, D), summed over the query heads of each key head."""
    kv_heads = like.shape[1]
    return x.view(kv_heads, -1, *x.shape[1:]).sum(1).transpose(0, 1).to(like.dtype)

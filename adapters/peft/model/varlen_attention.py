"""Variable-length attention over a packed layout, in two calls at most.

One call computes the attention of all sequences to their own new tokens, and one that to the tokens
that they share with earlier sequences. The softmax of both together follows from the log-sum-exp of
each. The backward kernel computes probabilities from the log-sum-exp that it is given: with the one
over all keys, and the merged output, the gradients of both calls are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

import torch

from adapters.peft.batching.attention_spans import AttentionSpans, Spans
from adapters.peft.batching.packed_layout import PackedLayout

FLASH_DTYPES = (torch.bfloat16, torch.float16)
FLASH_MAX_HEAD_DIM = 256  # FlashAttention-2's; it must also be a multiple of 8
FLASH_CAPABILITY = (8, 0)  # Ampere

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # w.r.t. query, key and value


class VarlenKernel(Protocol):
    """Attention of spans of queries to spans of keys, and its gradient.

    Query (N, H, D), keys and values side by side (C, 2 · K, D), with H a multiple of K.
    """

    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        spans: Spans,
        scale: float,
        *,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs (N, H, D), 0 without keys, and log-sum-exps (H, N) in float32 or better.

        The log-sum-exp of a query without keys is undefined.
        """
        ...

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
        """Return the gradients, with probabilities exp(scale · q k - lse)."""
        ...


class VarlenAttention:
    """Attention of a packed layout by a variable-length kernel; a LayerAttention."""

    def __init__(self, kernel: VarlenKernel, kv_heads: int, scale: float) -> None:
        self._kernel, self._kv_heads, self._scale = kernel, kv_heads, scale

    def forward(
        self, qkv: torch.Tensor, prefix_kv: torch.Tensor | None, layout: PackedLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs (N, H, D), and the log-sum-exp of each query's scores (H, N)."""
        spans, kernel, scale = layout.spans, self._kernel, self._scale
        query, key_value = self._split(qkv)
        out, lse = kernel.forward(query, key_value, spans.own, scale, causal=True)
        if spans.context is None:
            return out, lse
        context_kv = _gather_context(key_value, prefix_kv, layout)
        of_context = kernel.forward(query, context_kv, spans.context, scale, causal=False)
        return merge_outputs(out, lse, *of_context, spans.has_context)

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
        """Return the gradients w.r.t. `qkv`, to whose keys and values `dkv` is added, and prefix.

        What several spans add to a key or value is summed in float32 or better.
        """
        spans, kernel, scale = layout.spans, self._kernel, self._scale
        query, key_value = self._split(qkv)
        dquery, dkey, dvalue = kernel.backward(
            gradient, query, key_value, out, lse, spans.own, scale, causal=True
        )
        if spans.context is None and dkv is None:
            return torch.cat([dquery, dkey, dvalue], 1), None
        total = self._sum_slots(dkey, dvalue, prefix_kv, dkv)
        if spans.context is not None:
            context_kv = _gather_context(key_value, prefix_kv, layout)
            dquery_part, *dcontext = kernel.backward(
                gradient, query, context_kv, out, lse, spans.context, scale, causal=False
            )
            dquery.add_(dquery_part)
            _add_to_slots(total, torch.cat(dcontext, 1).to(total.dtype), spans)
        total = total.to(qkv.dtype)
        dqkv = torch.cat([dquery, total[: len(qkv)]], 1)
        return dqkv, None if prefix_kv is None else total[len(qkv) :]

    def _split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, H + 2 · K, D) to queries, and keys and values side by side."""
        heads = qkv.shape[1] - 2 * self._kv_heads
        return qkv[:, :heads], qkv[:, heads:]

    def _sum_slots(
        self,
        dkey: torch.Tensor,
        dvalue: torch.Tensor,
        prefix_kv: torch.Tensor | None,
        dkv: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the sums (N + P, 2 · K, D) so far: those of the P slots of the prefix are 0."""
        count, wide = len(dkey), torch.promote_types(dkey.dtype, torch.float32)
        slots = count if prefix_kv is None else count + len(prefix_kv)
        total = dkey.new_zeros(slots, 2 * self._kv_heads, dkey.shape[-1], dtype=wide)
        total[:count, : self._kv_heads] = dkey
        total[:count, self._kv_heads :] = dvalue
        if dkv is not None:
            total[:count] += dkv
        return total


def _gather_context(
    key_value: torch.Tensor, prefix_kv: torch.Tensor | None, layout: PackedLayout
) -> torch.Tensor:
    """Return keys and values (C, 2 · K, D) of the contexts."""
    all_slots = key_value if prefix_kv is None else torch.cat([key_value, prefix_kv])
    return all_slots.index_select(0, layout.spans.context_slots)


def _add_to_slots(total: torch.Tensor, added: torch.Tensor, spans: AttentionSpans) -> None:
    """Add the gradients (C, 2 · K, D) of contexts to those of their slots, in a fixed order."""
    if spans.distinct_slots:
        total.index_add_(0, spans.context_slots, added)
    else:  # a CUDA device sorts the slots, which takes several launches
        total.index_put_((spans.context_slots,), added, accumulate=True)


def merge_outputs(
    out: torch.Tensor,
    lse: torch.Tensor,
    context_out: torch.Tensor,
    context_lse: torch.Tensor,
    has_context: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention (N, H, D), and log-sum-exp (H, N), over the keys of both."""
    context_lse = context_lse.masked_fill(~has_context, float("-inf"))
    total = torch.logaddexp(lse, context_lse)
    own_weight = (lse - total).exp_().t()[..., None]
    context_weight = (context_lse - total).exp_().t()[..., None]
    merged = out * own_weight + context_out * context_weight
    return merged.to(out.dtype), total


class FlashKernel:
    """FlashAttention-2 as torch ships it, in bfloat16 or float16 on a CUDA device.

    Dao, 2023, arXiv:2307.08691. Its backward pass adds to the gradient of the queries in no fixed
    order, unless torch is asked for deterministic algorithms.
    """

    def __init__(self, device: torch.device) -> None:
        self._no_rng = torch.zeros(2, dtype=torch.uint64, device=device)  # there is no dropout
        self._unused = torch.empty(0, device=device)

    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        spans: Spans,
        scale: float,
        *,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            query,
            *key_value.chunk(2, 1),
            spans.query_starts,
            spans.key_starts,
            _at_least_two(spans.max_queries),
            spans.max_keys,
            0.0,
            causal,
            False,
            scale=scale,
        )
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
        with _deterministic_algorithms():
            gradients: Gradients = torch.ops.aten._flash_attention_backward(
                gradient,
                query,
                *key_value.chunk(2, 1),
                out,
                lse,
                spans.query_starts,
                spans.key_starts,
                _at_least_two(spans.max_queries),
                spans.max_keys,
                0.0,
                causal,
                self._no_rng,
                self._unused,
                scale=scale,
            )
        return gradients


def has_flash_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Return true if torch's FlashAttention computes heads of this width on a device."""
    if device.type != "cuda" or dtype not in FLASH_DTYPES or torch.version.hip is not None:
        return False
    if find_spec("torch.nn.attention.varlen") is None:  # older versions pad the log-sum-exps
        return False
    fits = head_dim % 8 == 0 and head_dim <= FLASH_MAX_HEAD_DIM
    capable = torch.cuda.get_device_capability(device) >= FLASH_CAPABILITY
    return fits and capable and torch.backends.cuda.is_flash_attention_available()


@contextmanager
def _deterministic_algorithms() -> Iterator[None]:
    """Let torch choose deterministic algorithms within a block, without filling new tensors."""
    mode = torch.get_deterministic_debug_mode()
    settings: Any = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory
    settings.fill_uninitialized_memory = False
    torch.set_deterministic_debug_mode(2)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        settings.fill_uninitialized_memory = fills


def _at_least_two(max_queries: int) -> int:
    """Keep torch from its decoding path for spans of one query, which has another layout."""
    return max(max_queries, 2)

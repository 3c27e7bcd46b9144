"""Tiled attention for models whose other parts transformers computes."""

from __future__ import annotations

from typing import Any

import torch

from adapters.peft.model.tiled_attention import TiledAttention

IMPLEMENTATION = "kitchen"  # its name among the attention implementations of transformers
UNSUPPORTED = ("softcap", "position_bias", "s_aux", "sinks", "sliding_window")


def use_tiled_attention(model: Any) -> None:
    """Let a model attend by `attention_forward` instead of torch's scaled_dot_product_attention."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(IMPLEMENTATION, attention_forward)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
    model.set_attn_implementation(IMPLEMENTATION)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Query (B, H, T, D), key and value (B, K, S, D) to (B, T, H, D).

    The mask is (B or 1, 1, T, S) bool or None. With a `layout` the batch is one row of packed
    tokens, and there is no mask.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    layout, plain = kwargs.pop("layout", None), _is_plain_causal(module, kwargs)
    scale = query.shape[-1] ** -0.5 if kwargs.get("scaling") is None else float(kwargs["scaling"])
    if layout is not None and plain:
        apply: Any = TiledAttention.apply
        packed = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
        return apply(*packed, layout, scale)[None], None
    if query.dtype != torch.bfloat16 or query.device.type != "cpu":
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if plain and query.shape[2] == 1:
        return _decode_one_token(query, key, value, scale, attention_mask), None
    # float32 takes half the time of torch's kernel for bfloat16
    attended, _ = sdpa_attention_forward(
        module, query.float(), key.float(), value.float(), attention_mask, **kwargs
    )
    return attended.to(query.dtype), None


def _is_plain_causal(module: torch.nn.Module, kwargs: dict[str, Any]) -> bool:
    return (
        getattr(module, "is_causal", True)
        and kwargs.get("is_causal") is not False
        and not kwargs.get("dropout")
        and all(kwargs.get(name) is None for name in UNSUPPORTED)
    )


def _decode_one_token(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Attend with one query per row; heads that share a key head are stacked, not keys repeated."""
    batch, heads, _, width = query.shape
    kv_heads, length = key.shape[1], key.shape[2]
    stacked = query.reshape(batch * kv_heads, heads // kv_heads, width)
    keys = key.reshape(batch * kv_heads, length, width)
    scores = torch.bmm(stacked, keys.transpose(1, 2)).mul(scale)
    scores = scores.view(batch, heads, 1, length)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, -1).view(batch * kv_heads, -1, length)
    out = torch.bmm(weights, value.reshape(batch * kv_heads, length, value.shape[-1]))
    return out.view(batch, heads, 1, -1).transpose(1, 2).contiguous()

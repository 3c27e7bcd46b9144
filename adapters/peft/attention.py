"""Attention on a CPU in bfloat16, where torch's own kernel is several times slower than plain matrix products."""

from __future__ import annotations

from typing import Any

import torch

NAME = "kitchen_cpu"
PLAIN = 256  # tokens; a longer sequence is not worth its (T, T) probabilities, which are kept for the backward pass


def use_plain_attention(model: Any) -> None:
    """Let a model attend by `attend` instead of torch's scaled_dot_product_attention."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def attend(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Query (B, H, T, D), key and value (B, K, S, D), mask (B or 1, 1, T, S) bool or none, to (B, T, H, D)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    length, plain = query.shape[2], _is_plain(module, kwargs)
    if plain and length == 1:
        return _plain(query, key, value, kwargs.get("scaling"), _bias(attention_mask, query)), None
    if plain and attention_mask is None and length == key.shape[2] <= PLAIN:
        causal = torch.full((length, length), float("-inf"), dtype=query.dtype).triu_(1)
        return _plain(query, key, value, kwargs.get("scaling"), causal), None
    # float32 takes half the time of torch's kernel for bfloat16
    attended, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), attention_mask, **kwargs)
    return attended.to(query.dtype), None


def _is_plain(module: torch.nn.Module, kwargs: dict[str, Any]) -> bool:
    unusual = ("softcap", "position_bias", "s_aux", "sinks")
    return (getattr(module, "is_causal", True) and kwargs.get("is_causal") is not False
            and not kwargs.get("dropout") and all(kwargs.get(name) is None for name in unusual))


def _bias(mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """(B, 1, 1, S), 0 where attended."""
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=like.dtype).masked_fill_(~mask, float("-inf"))


def _plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """The query heads that share a key head are stacked, so that keys are not repeated. Returns (B, T, H, D)."""
    batch, heads, length, width = query.shape
    groups, source = key.shape[1], key.shape[2]
    stacked = query.reshape(batch * groups, heads // groups * length, width)
    scores = torch.bmm(stacked, key.reshape(batch * groups, source, width).transpose(1, 2))
    scores = scores.mul(width**-0.5 if scaling is None else scaling).view(batch, heads, length, source)
    if bias is not None:
        scores = scores + bias
    weights = torch.softmax(scores, -1).view(batch * groups, -1, source)
    out = torch.bmm(weights, value.reshape(batch * groups, source, value.shape[-1]))
    return out.view(batch, heads, length, -1).transpose(1, 2).contiguous()

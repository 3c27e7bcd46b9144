"""Kernels of a decoding step in plain torch: the reference, and what runs without a GPU."""

from __future__ import annotations

import torch
from torch.nn import functional

from adapters.peft.model.elementwise import RMSNorm, apply_rope
from adapters.peft.sampling.draw import draw_static
from adapters.peft.sampling.kv_cache import HeadLayout
from adapters.peft.sampling.paged.kernels import END, PAGE, PROMPT, START, Batch
from adapters.peft.sampling.paged.weights import HeadNormWeights, Product


class TorchKernels:
    """The kernels, one torch operation after the other; sums in float32 or better."""

    def add_norm(self, x: torch.Tensor, added: Product | None, norm: RMSNorm) -> torch.Tensor:
        if added is not None:
            x.copy_(x + _whole(added))
        return _normalize(x.to(_accum_dtype(x)), norm.weight, norm.eps).to(x.dtype)

    def rope_and_store(
        self,
        qkv: Product,
        heads: HeadLayout,
        batch: Batch,
        pages: torch.Tensor,
        norms: HeadNormWeights | None = None,
    ) -> torch.Tensor:
        whole = _whole(qkv).view(len(qkv.out), -1, heads.head_dim)
        ends = batch.rows[END].long()
        positions = batch.rows[PROMPT] + ends - batch.rows[START]
        rope = batch.cos[positions][:, None], batch.sin[positions][:, None]
        rotated = whole[:, : heads.query_heads + heads.kv_heads]
        if norms is not None:
            counts = torch.tensor([heads.query_heads, heads.kv_heads], device=whole.device)
            weights = norms.weights.repeat_interleave(counts, 0, output_size=rotated.shape[1])
            rotated.copy_(_normalize(rotated, weights, norms.eps))
        apply_rope(rotated, rope)
        whole = whole.to(qkv.out.dtype)
        page = batch.table.gather(1, (ends // PAGE)[:, None])[:, 0]
        for part, new in enumerate(whole[:, heads.query_heads :].chunk(2, 1)):
            pages[part].transpose(1, 2).index_put_((page, ends % PAGE), new)
        return whole[:, : heads.query_heads].contiguous()

    def attend(
        self, query: torch.Tensor, heads: HeadLayout, batch: Batch, pages: torch.Tensor
    ) -> torch.Tensor:
        count, slots = len(query), batch.table.shape[1] * PAGE
        # (2, R, kv_heads, W · PAGE, D)
        kv = pages[:, batch.table].transpose(2, 3).reshape(2, count, heads.kv_heads, slots, -1)
        keys, values = kv.to(_accum_dtype(query))
        grouped = query.to(keys.dtype).view(count, heads.kv_heads, heads.heads_per_kv, -1)
        slot = torch.arange(slots, device=query.device)
        end, prompt, start = (batch.rows[row][:, None] for row in (END, PROMPT, START))
        visible = (slot < prompt) | ((slot >= start) & (slot <= end))
        scores = grouped @ keys.transpose(2, 3) * heads.scale
        scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
        attended: torch.Tensor = torch.softmax(scores, -1) @ values
        return attended.to(query.dtype).view(count, -1)

    def swiglu(self, gate_up: Product) -> torch.Tensor:
        gate, up = _whole(gate_up).chunk(2, -1)
        return (functional.silu(gate) * up).to(gate_up.out.dtype)

    def sample(
        self, logits: torch.Tensor, controls: torch.Tensor, *, truncated: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return draw_static(logits, controls, _accum_dtype(logits), truncated=truncated)


def _whole(product: Product) -> torch.Tensor:
    """Complete a product with its low-rank part: (R, n) in float32 or better."""
    whole = product.out.to(_accum_dtype(product.out))
    if product.low_rank is None or product.b is None:
        return whole.clone() if whole is product.out else whole
    low_rank, b = product.low_rank.to(whole.dtype), product.b.to(whole.dtype)
    pairs = zip(
        torch.split(low_rank, product.rank, 1), torch.split(b, list(product.parts), 1), strict=True
    )
    return whole + torch.cat([part @ columns for part, columns in pairs], 1)


def _normalize(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean x² + eps) · weight over the last dimension."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def _accum_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)

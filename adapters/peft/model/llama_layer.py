"""One layer of a Llama-like decoder in as few, large operations as there can be, forward and
backward by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from adapters.peft.batching.packed_layout import Layout
from adapters.peft.model import tiled_attention as attention
from adapters.peft.model.linear import Product

Rope = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, (N, 1, D / 2)


class Layer:
    """y = x + out(attention(norm x)); z = y + down(silu(gate(norm y)) · up(norm y)).

    Touvron et al., 2023, arXiv:2302.13971.
    """

    def __init__(self, inner: Any) -> None:
        """`inner`: a layer of transformers, whose weights, LoRA's among them, it computes with."""
        attends, mlp = inner.self_attn, inner.mlp
        self.into = Product([attends.q_proj, attends.k_proj, attends.v_proj])
        self.out = Product([attends.o_proj])
        self.up = Product([mlp.gate_proj, mlp.up_proj])
        self.down = Product([mlp.down_proj])
        self.norms = Norm(inner.input_layernorm), Norm(inner.post_attention_layernorm)
        self.scale, self.width = float(attends.scaling), int(attends.head_dim)
        self.heads = self.out.weight.shape[1] // self.width
        self.groups = (len(self.into.weight) // self.width - self.heads) // 2

    @property
    def trained(self) -> list[nn.Parameter]:
        return [*self.into.trained, *self.out.trained, *self.up.trained, *self.down.trained]

    def split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of (N, heads + 2 · groups, D)."""
        return torch.split(qkv, [self.heads, self.groups, self.groups], 1)  # type: ignore[return-value]

    def beside(
        self, qkv: torch.Tensor, before: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of (N, heads + 2 · groups, D), with (P, 2 · groups, D) keys and values of what lies
        before behind its own.
        """
        query, key, value = self.split(qkv)
        if before is None:
            return query, key, value
        keys, values = before.chunk(2, 1)
        return query, torch.cat([key, keys]), torch.cat([value, values])

    def attend_to(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """(N, H) to queries, keys and values side by side, (N, heads + 2 · groups, D), turned by
        their positions.
        """
        found = self.into.forward(self.norms[0].alone(x))[0].view(len(x), -1, self.width)
        turn(found[:, : self.heads + self.groups], rope)
        return found

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """(N, H) and (N, heads · D) to (N, H)."""
        y = self.out.forward(attended, x)[0]
        gate, up = self.up.forward(self.norms[1].alone(y))[0].chunk(2, -1)
        return self.down.forward(functional.silu(gate).mul_(up), y)[0]


@dataclass(frozen=True)
class Kept:
    """What a layer keeps of its way there for the way back."""

    x: torch.Tensor
    spreads: tuple[torch.Tensor, torch.Tensor]  # of the norms
    qkv: torch.Tensor
    attended: torch.Tensor
    y: torch.Tensor
    gate_up: torch.Tensor
    low: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # of the products

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.x, *self.spreads, self.qkv, self.attended, self.y, self.gate_up, *self.low)

    @classmethod
    def of(cls, kept: Sequence[torch.Tensor]) -> Kept:
        x, spread0, spread1, qkv, attended, y, gate_up, *low = kept
        return cls(x, (spread0, spread1), qkv, attended, y, gate_up, tuple(low))  # type: ignore[arg-type]


class Trained(torch.autograd.Function):
    """A layer whose gradient is computed by hand; with `again`, what goes into it alone is kept
    (Chen et al., 2016, arXiv:1604.06174). Gives (N, H) and its (N, 2 · groups, D) keys and values;
    those `before` are attended to as well.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        layer: Layer,
        layout: Layout,
        rope: Rope,
        again: bool,
        before: torch.Tensor | None,
        *trained: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, kept = _there(layer, x, layout, rope, before)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(before, *((x,) if again else kept.tensors()))
        ctx.layer, ctx.layout, ctx.rope, ctx.again = layer, layout, rope, again
        return out, kept.qkv[:, layer.heads :]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        before, *saved = ctx.saved_tensors
        kept = (
            _there(ctx.layer, saved[0], ctx.layout, ctx.rope, before)[1]
            if ctx.again
            else Kept.of(saved)
        )
        dx, dbefore, found = _back(ctx, kept, before, *gradients)
        return dx, None, None, None, None, dbefore, *found


def _there(
    layer: Layer, x: torch.Tensor, layout: Layout, rope: Rope, before: torch.Tensor | None
) -> tuple[torch.Tensor, Kept]:
    normed, spread = layer.norms[0].forward(x)
    flat, low = layer.into.forward(normed)
    qkv = flat.view(len(x), -1, layer.width)
    turn(qkv[:, : layer.heads + layer.groups], rope)
    attended = attention.forward(*layer.beside(qkv, before), layout, layer.scale).view(len(x), -1)
    y, low_out = layer.out.forward(attended, x)
    normed, spread_y = layer.norms[1].forward(y)
    gate_up, low_up = layer.up.forward(normed)
    gate, up = gate_up.chunk(2, -1)
    z, low_down = layer.down.forward(functional.silu(gate).mul_(up), y)
    return z, Kept(
        x, (spread, spread_y), qkv, attended, y, gate_up, (low, low_out, low_up, low_down)
    )


def _back(
    ctx: Any, kept: Kept, before: torch.Tensor | None, dz: Any, dkeys: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None, list[torch.Tensor]]:
    """`dkeys` is what others that attended to its keys and values give back."""
    layer, layout, rope = ctx.layer, ctx.layout, ctx.rope
    dnormed, of_mlp = _back_through_mlp(layer, dz, kept)
    dy = layer.norms[1].backward(dnormed, kept.y, kept.spreads[1]).add_(dz)
    dattended, of_out = layer.out.backward(dy, kept.attended, kept.low[1])
    dqkv, shape = torch.empty_like(kept.qkv), (len(dy), layer.heads, layer.width)
    query, key, value = layer.beside(kept.qkv, before)
    found = torch.cat(
        attention.backward(
            dattended.view(shape),
            query,
            key,
            value,
            kept.attended.view(shape),
            layout,
            layer.scale,
            dqkv[:, : layer.heads],
        ),
        1,
    )
    dqkv[:, layer.heads :] = found[: len(dy)] if dkeys is None else found[: len(dy)] + dkeys
    dbefore = None if before is None else found[len(dy) :].to(before.dtype)
    turn(dqkv[:, : layer.heads + layer.groups], (rope[0], -rope[1]))
    normed = layer.norms[0].again(kept.x, kept.spreads[0])
    of_layer = dqkv.view(len(dy), -1), normed, kept.low[0]
    if not ctx.needs_input_grad[0]:
        return None, dbefore, [*layer.into.gradients(*of_layer)[0], *of_out, *of_mlp]
    dnormed, of_into = layer.into.backward(*of_layer)
    dx = layer.norms[0].backward(dnormed, kept.x, kept.spreads[0]).add_(dy)
    return dx, dbefore, [*of_into, *of_out, *of_mlp]


def _back_through_mlp(
    layer: Layer, dz: torch.Tensor, kept: Kept
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    gate, up = kept.gate_up.chunk(2, -1)
    bent = functional.silu(gate)
    dhidden, of_down = layer.down.backward(dz, bent * up, kept.low[3])
    dgate_up = torch.empty_like(kept.gate_up)
    dgate, dup = dgate_up.chunk(2, -1)
    torch.mul(dhidden, bent, out=dup)
    torch.ops.aten.silu_backward.grad_input(dhidden.mul_(up), gate, grad_input=dgate)
    normed = layer.norms[1].again(kept.y, kept.spreads[1])
    dnormed, of_up = layer.up.backward(dgate_up, normed, kept.low[2])
    return dnormed, [*of_up, *of_down]


class Norm:
    """x / sqrt(mean x² + eps) · weight (Zhang and Sennrich, 2019, arXiv:1910.07467); the mean in
    float32 or better.
    """

    def __init__(self, inner: Any) -> None:
        self.weight, self._eps, width = (
            inner.weight.detach(),
            float(inner.variance_epsilon),
            len(inner.weight),
        )
        high = torch.promote_types(self.weight.dtype, torch.float32)
        self._root = width**0.5
        self._least = self.weight.new_tensor((width * inner.variance_epsilon) ** 0.5, dtype=high)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, H) to the same, and sqrt(mean x² + eps), (N, 1); in few calls, for few rows feel each
        of them.
        """
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=self._least.dtype)
        spread = length.hypot_(self._least).div_(self._root)
        return self.again(x, spread), spread

    def alone(self, x: torch.Tensor) -> torch.Tensor:
        """(N, H) to the same; on a CUDA device in one call."""
        if x.device.type == "cpu":
            return self.forward(x)[0]
        return functional.rms_norm(x, self.weight.shape, self.weight, self._eps)

    def again(self, x: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        return (x / spread).to(x.dtype).mul_(self.weight)

    def backward(
        self, gradient: torch.Tensor, x: torch.Tensor, spread: torch.Tensor
    ) -> torch.Tensor:
        """Consumes `gradient`."""
        gradient.mul_(self.weight)
        along = torch.linalg.vecdot(gradient, x)[:, None] / (spread.pow(3) * x.shape[-1])
        return gradient.div_(spread).addcmul_(x, along.to(x.dtype), value=-1)


def turn(x: torch.Tensor, rope: Rope) -> None:
    """Rotate (N, heads, D) by position, in place: feature i with i + D / 2 (Su et al., 2021,
    arXiv:2104.09864).
    """
    first, second = x.chunk(2, -1)
    cos, sin = rope
    kept = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(kept)

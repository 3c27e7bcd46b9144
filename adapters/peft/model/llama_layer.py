"""One layer of a Llama-like decoder in few, large operations, with a hand-written backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from adapters.peft.batching.packed_layout import PackedLayout
from adapters.peft.model.elementwise import Rope
from adapters.peft.model.head_norms import find_head_norms
from adapters.peft.model.layer_kernels import LayerKernels, choose_kernels


class Layer:
    """y = x + o(attention(qkv(norm x))); z = y + down(silu(gate(norm y)) · up(norm y)).

    Touvron et al., 2023, arXiv:2302.13971. Queries and keys may have norms of their own.
    """

    def __init__(self, module: Any, kernels: LayerKernels | None = None) -> None:
        """Share the weights and LoRA weights of `module`, a layer of transformers.

        `kernels` compute it; by default those that are best for its device and dtype.
        """
        attends, mlp = module.self_attn, module.mlp
        kernels = kernels or choose_kernels(module.input_layernorm.weight, int(attends.head_dim))
        self.qkv_proj = kernels.linear([attends.q_proj, attends.k_proj, attends.v_proj])
        self.o_proj = kernels.linear([attends.o_proj])
        self.gate_up_proj = kernels.linear([mlp.gate_proj, mlp.up_proj])
        self.down_proj = kernels.linear([mlp.down_proj])
        self.elementwise = kernels.elementwise
        self.input_norm = self.elementwise.norm(module.input_layernorm)
        self.post_attention_norm = self.elementwise.norm(module.post_attention_layernorm)
        self.scale = float(attends.scaling)
        self.head_dim = int(attends.head_dim)
        self.heads = self.o_proj.weight.shape[1] // self.head_dim
        self.kv_heads = (len(self.qkv_proj.weight) // self.head_dim - self.heads) // 2
        self.attention = kernels.attention(self.kv_heads, self.scale)
        self.head_norms = find_head_norms(attends, self.elementwise, self.heads, self.kv_heads)

    @property
    def trainable(self) -> list[nn.Parameter]:
        """A and B of all its projections."""
        projections = (self.qkv_proj, self.o_proj, self.gate_up_proj, self.down_proj)
        return list(chain.from_iterable(projection.trainable for projection in projections))

    def split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(N, heads + 2 · kv_heads, D) to views of its queries, keys and values."""
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        return torch.split(qkv, sizes, 1)  # type: ignore[return-value]

    def project_qkv(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """(N, H) to queries, keys and values (N, heads + 2 · kv_heads, D), rotated by position."""
        flat = self.qkv_proj.forward(self.input_norm.normalize(x))[0]
        qkv = flat.view(len(x), -1, self.head_dim)
        if self.head_norms is not None:
            self.head_norms.forward(qkv)
        self.elementwise.rotate(qkv[:, : self.heads + self.kv_heads], rope)
        return qkv

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """(N, H) inputs and (N, heads · D) attention outputs to the layer's (N, H) outputs."""
        y = self.o_proj.forward(attended, x)[0]
        gate_up = self.gate_up_proj.forward(self.post_attention_norm.normalize(y))[0]
        return self.down_proj.forward(self.elementwise.swiglu(gate_up), y)[0]


@dataclass(frozen=True)
class Activations:
    """The activations of a layer that its backward pass needs."""

    x: torch.Tensor
    rms: tuple[torch.Tensor, torch.Tensor]  # of the inputs of both norms
    qkv: torch.Tensor
    attended: torch.Tensor
    lse: torch.Tensor  # of the attention
    y: torch.Tensor
    gate_up: torch.Tensor
    before_norms: torch.Tensor  # queries and keys, if they have norms
    # scale · A x of qkv_proj, o_proj, gate_up_proj and down_proj
    low_rank: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        attention = self.qkv, self.attended, self.lse
        mlp = self.y, self.gate_up
        return (self.x, *self.rms, *attention, *mlp, self.before_norms, *self.low_rank)

    @classmethod
    def from_tensors(cls, tensors: Sequence[torch.Tensor]) -> Activations:
        x, rms_x, rms_y, qkv, attended, lse, y, gate_up, before, *low_rank = tensors
        rms = rms_x, rms_y
        return cls(x, rms, qkv, attended, lse, y, gate_up, before, tuple(low_rank))  # type: ignore[arg-type]


class LayerFunction(torch.autograd.Function):
    """A layer with a hand-written gradient.

    Returns (N, H) outputs and the (N, 2 · kv_heads, D) keys and values.

    With `checkpointing` only its input is saved, and activations are recomputed (Chen et al., 2016,
    arXiv:1604.06174). Tokens attend to the keys and values of `prefix_kv` as well.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        layer: Layer,
        layout: PackedLayout,
        rope: Rope,
        checkpointing: bool,
        prefix_kv: torch.Tensor | None,
        *trainable: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, activations = _forward(layer, x, layout, rope, prefix_kv)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(prefix_kv, *((x,) if checkpointing else activations.tensors()))
        ctx.layer, ctx.layout, ctx.rope, ctx.checkpointing = layer, layout, rope, checkpointing
        return out, activations.qkv[:, layer.heads :]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        prefix_kv, *saved = ctx.saved_tensors
        if ctx.checkpointing:
            _, activations = _forward(ctx.layer, saved[0], ctx.layout, ctx.rope, prefix_kv)
        else:
            activations = Activations.from_tensors(saved)
        dx, dprefix_kv, dtrainable = _backward(ctx, activations, prefix_kv, *gradients)
        return dx, None, None, None, None, dprefix_kv, *dtrainable


def _forward(
    layer: Layer,
    x: torch.Tensor,
    layout: PackedLayout,
    rope: Rope,
    prefix_kv: torch.Tensor | None,
) -> tuple[torch.Tensor, Activations]:
    normed, rms_x = layer.input_norm.forward(x)
    flat, low_qkv = layer.qkv_proj.forward(normed)
    qkv = flat.view(len(x), -1, layer.head_dim)
    before = low_qkv.new_empty(0) if layer.head_norms is None else layer.head_norms.forward(qkv)
    layer.elementwise.rotate(qkv[:, : layer.heads + layer.kv_heads], rope)
    attended, lse = layer.attention.forward(qkv, prefix_kv, layout)
    attended = attended.view(len(x), -1)
    y, low_o = layer.o_proj.forward(attended, x)
    normed, rms_y = layer.post_attention_norm.forward(y)
    gate_up, low_gate_up = layer.gate_up_proj.forward(normed)
    z, low_down = layer.down_proj.forward(layer.elementwise.swiglu(gate_up), y)
    low_rank = low_qkv, low_o, low_gate_up, low_down
    rms = rms_x, rms_y
    return z, Activations(x, rms, qkv, attended, lse, y, gate_up, before, low_rank)


def _backward(
    ctx: Any,
    saved: Activations,
    prefix_kv: torch.Tensor | None,
    dz: Any,
    dkv: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, list[torch.Tensor]]:
    """Return the gradients w.r.t. x, `prefix_kv` and the trainable parameters.

    `dkv` is the gradient w.r.t. the layer's keys and values from micro-batches that attended to
    them as their prefix.
    """
    layer = ctx.layer
    dnormed, dmlp = _mlp_backward(layer, dz, saved)
    dy = layer.post_attention_norm.backward(dnormed, saved.y, saved.rms[1], dz)
    dattended, do_proj = layer.o_proj.backward(dy, saved.attended, saved.low_rank[1])
    by_head = len(dy), layer.heads, layer.head_dim
    dqkv, dprefix_kv = layer.attention.backward(
        dattended.view(by_head),
        saved.qkv,
        prefix_kv,
        saved.attended.view(by_head),
        saved.lse,
        ctx.layout,
        dkv,
    )
    layer.elementwise.rotate(dqkv[:, : layer.heads + layer.kv_heads], ctx.rope, back=True)
    if layer.head_norms is not None:
        layer.head_norms.backward(dqkv, saved.before_norms)
    normed = layer.input_norm.rescale(saved.x, saved.rms[0])
    of_qkv = dqkv.view(len(dy), -1), normed, saved.low_rank[0]
    if not ctx.needs_input_grad[0]:
        dqkv_proj, _ = layer.qkv_proj.parameter_gradients(*of_qkv)
        return None, dprefix_kv, [*dqkv_proj, *do_proj, *dmlp]
    dnormed, dqkv_proj = layer.qkv_proj.backward(*of_qkv)
    dx = layer.input_norm.backward(dnormed, saved.x, saved.rms[0], dy)
    return dx, dprefix_kv, [*dqkv_proj, *do_proj, *dmlp]


def _mlp_backward(
    layer: Layer, dz: torch.Tensor, saved: Activations
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the gradients w.r.t. the MLP's normalised input and its trainable parameters."""
    hidden, activated = layer.elementwise.swiglu_again(saved.gate_up)
    dhidden, ddown_proj = layer.down_proj.backward(dz, hidden, saved.low_rank[3])
    dgate_up = layer.elementwise.swiglu_backward(dhidden, saved.gate_up, activated)
    normed = layer.post_attention_norm.rescale(saved.y, saved.rms[1])
    dnormed, dgate_up_proj = layer.gate_up_proj.backward(dgate_up, normed, saved.low_rank[2])
    return dnormed, [*dgate_up_proj, *ddown_proj]

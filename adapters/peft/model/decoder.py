"""The fused body of a Llama-like model over a packed layout: embeddings, layers, final norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from adapters.peft.batching.packed_layout import PackedLayout
from adapters.peft.model.elementwise import RMSNorm, Rope
from adapters.peft.model.layer_kernels import LayerKernels
from adapters.peft.model.linear import is_quantised, make_contiguous
from adapters.peft.model.llama_layer import Layer, LayerFunction
from adapters.peft.model.lora_linear import LoraLinear

# model types of transformers; others with the same modules may compute something more
MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
QUANTIZED = "its weights are quantised"
PROJECTIONS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


def fused_obstacle(model: Any) -> str | None:
    """Return why a model has no hand-written layers, as a clause; None for Llama-like layers.

    `choose_forward_mode` also compares logits.
    """
    config = model.config.get_text_config()
    if config.model_type not in MODEL_TYPES:
        return f"there are no hand-written layers for the model type {config.model_type!r}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}, not 'silu'"
    if not all(_is_plain(layer) for layer in model.base_model.layers):
        return QUANTIZED
    return None


def make_weights_contiguous(model: Any) -> None:
    """Move weights that are multiplied together next to each other, without copying the model."""
    for layer in model.base_model.layers:
        attends, mlp = layer.self_attn, layer.mlp
        make_contiguous([attends.q_proj, attends.k_proj, attends.v_proj])
        make_contiguous([mlp.gate_proj, mlp.up_proj])


class Decoder:
    """The layers of a model, computed by hand-written functions; they have no dropout."""

    def __init__(
        self,
        model: Any,
        *,
        checkpointing: bool = False,
        kernels: LayerKernels | None = None,
    ) -> None:
        """`kernels` compute the layers; by default those that are best for their device."""
        self._body = model.base_model
        self._checkpointing = checkpointing
        self.layers = [Layer(layer, kernels) for layer in self._body.layers]
        self.norm = self.layers[0].elementwise.norm(self._body.norm)
        self.is_quantised = self.layers[0].o_proj.is_quantised

    def hidden(
        self,
        layout: PackedLayout,
        before_layer: Callable[[], None],
        prefix_kv: Sequence[torch.Tensor] = (),
        kv_out: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Return the (N, H) final states; `before_layer` is called before each layer.

        `prefix_kv`: for each layer, (P, 2 · kv_heads, D) keys and values of the layout's prefix.
        Those of the N tokens are appended to `kv_out`.
        """
        x = self.embed(layout.ids)
        rope = self.rope(x, layout.positions)
        apply_layer: Any = LayerFunction.apply
        apply_norm: Any = _FinalNorm.apply
        for number, layer in enumerate(self.layers):
            before_layer()
            x, kv = apply_layer(
                x,
                layer,
                layout,
                rope,
                self._checkpointing,
                prefix_kv[number] if prefix_kv else None,
                *layer.trainable,
            )
            if kv_out is not None:
                kv_out.append(kv.contiguous())
        states: torch.Tensor = apply_norm(x, self.norm)
        return states

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """(N,) ids to (N, H)."""
        embedded: torch.Tensor = self._body.embed_tokens(ids)
        return embedded

    def rope(self, x: torch.Tensor, positions: torch.Tensor) -> Rope:
        """Return the rotations of (N,) positions in the dtype of x."""
        cos, sin = self._body.rotary_emb(x[None], positions[None])
        half = cos.shape[-1] // 2
        return cos[0, :, None, :half].contiguous(), sin[0, :, None, :half].contiguous()


class _FinalNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
        out, rms = norm.forward(x)
        ctx.save_for_backward(x, rms)
        ctx.norm = norm
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.norm.backward(gradients[0].clone(), *ctx.saved_tensors), None


def _is_plain(layer: Any) -> bool:
    """Return true if all projections are frozen or LoRA matrices, as they are or in 4 bits."""
    for holder, names in PROJECTIONS.items():
        for name in names:
            projection = getattr(getattr(layer, holder), name)
            known = type(projection) is nn.Linear or is_quantised(projection)
            if not known and not isinstance(projection, LoraLinear):
                return False
    return True

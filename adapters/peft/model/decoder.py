"""The body of a Llama-like model over a layout: embeddings, layers, last norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from adapters.peft.batching.packed_layout import Layout
from adapters.peft.model.linear import lay_together
from adapters.peft.model.llama_layer import Layer, Norm, Rope, Trained
from adapters.peft.model.lora import LoraLinear

FAMILIES = frozenset({"llama", "mistral", "qwen2"})  # others may do more between the same parts
PARTS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


def fits(model: Any) -> bool:
    """Whether a model is built of such layers; that the sums agree too, `way_of` proves."""
    config = model.config.get_text_config()
    return (
        config.model_type in FAMILIES
        and config.hidden_act == "silu"
        and all(_is_plain(layer) for layer in model.base_model.layers)
    )


def gather(model: Any) -> None:
    """Put weights that are multiplied together next to each other, without a second copy of the
    model.
    """
    for layer in model.base_model.layers:
        lay_together([getattr(layer.self_attn, name) for name in ("q_proj", "k_proj", "v_proj")])
        lay_together([getattr(layer.mlp, name) for name in ("gate_proj", "up_proj")])


class Decoder:
    """The layers of one tree of modules, computed by hand; dropout it has none."""

    def __init__(self, model: Any, *, checkpointing: bool = False) -> None:
        self._body, self._again = model.base_model, checkpointing
        self.layers = [Layer(layer) for layer in self._body.layers]
        self.norm = Norm(self._body.norm)

    def hidden(
        self,
        layout: Layout,
        at_layer: Callable[[], None],
        before: Sequence[torch.Tensor] = (),
        keys: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """(N, H); `at_layer` is called before each layer.

        `before`: of each layer (P, 2 · groups, D) keys and values of what a layout begins with;
        into `keys` go its own.
        """
        x = self.embed(layout.ids)
        rope = self.rope(x, layout.positions)
        trained: Any = Trained.apply
        normed: Any = _Normed.apply
        for number, layer in enumerate(self.layers):
            at_layer()
            x, own = trained(
                x,
                layer,
                layout,
                rope,
                self._again,
                before[number] if before else None,
                *layer.trained,
            )
            if keys is not None:
                keys.append(own.contiguous())
        out: torch.Tensor = normed(x, self.norm)
        return out

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._body.embed_tokens(ids)
        return found

    def rope(self, x: torch.Tensor, positions: torch.Tensor) -> Rope:
        """Of (N,) positions, in the dtype of x."""
        cos, sin = self._body.rotary_emb(x[None], positions[None])
        half = cos.shape[-1] // 2
        return cos[0, :, None, :half].contiguous(), sin[0, :, None, :half].contiguous()


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        out, spread = norm.forward(x)
        ctx.save_for_backward(x, spread)
        ctx.norm = norm
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.norm.backward(gradients[0].clone(), *ctx.saved_tensors), None


def _is_plain(layer: Any) -> bool:
    """Its parts are frozen or LoRA matrices, not packed ones."""
    parts = [
        getattr(getattr(layer, holder), name) for holder, names in PARTS.items() for name in names
    ]
    return all(type(part) is nn.Linear or isinstance(part, LoraLinear) for part in parts)

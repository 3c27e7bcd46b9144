"""Networks: a body that computes hidden states, a head for logits, and a forward mode."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from adapters.peft.batching.packed_layout import PackedLayout, build_layout
from adapters.peft.batching.packing import MIN_SHARED, NO_SHARING
from adapters.peft.model.decoder import Decoder, is_llama_like
from adapters.peft.model.hf_attention import IMPLEMENTATION
from adapters.peft.model.logit_change import ChangedHead, read_logit_changes
from adapters.peft.model.shared_prefix import SharedPrefix
from adapters.peft.runtime.worker import raise_if_closed
from kitchen.errors import BackendError
from kitchen.types import Array, Tokens


class ForwardMode(StrEnum):
    """Ways to compute the body, the fastest first."""

    FUSED = "hand-written layers over packed tokens"
    PACKED = "transformers over packed tokens"
    SEQUENTIAL = "transformers, one sequence at a time"


class Network:
    """A body and a head; `choose_forward_mode` returns modes that are correct for a model."""

    def __init__(self, model: Any, mode: ForwardMode, *, checkpointing: bool = False) -> None:
        config = model.config.get_text_config()
        embeddings = model.get_input_embeddings()
        self.model, self.mode = model, mode
        self.vocab_size = int(embeddings.num_embeddings)
        self.context_length = int(getattr(config, "max_position_embeddings", 0) or 2**31)  # tokens
        self.layer_count = int(config.num_hidden_layers)
        self.device = embeddings.weight.device
        self._logit_changes = read_logit_changes(config)
        fused = mode == ForwardMode.FUSED
        self.decoder = Decoder(model, checkpointing=checkpointing) if fused else None
        # tokens; shorter common prefixes of sequences are not shared
        self.min_shared = NO_SHARING if mode == ForwardMode.SEQUENTIAL else MIN_SHARED
        if checkpointing and self.decoder is None:
            checkpoint_activations(model)

    @property
    def head(self) -> nn.Module:
        """The output layer, with scaled or capped logits: (..., H) to (..., V) logits."""
        head: nn.Module = self.model.get_output_embeddings()
        return ChangedHead(head, self._logit_changes) if self._logit_changes else head

    def hidden(self, layout: PackedLayout, prefix: SharedPrefix | None = None) -> torch.Tensor:
        """Return the (N, H) states of a layout's tokens, followed by the (P, H) of its prefix."""
        if prefix is not None and not len(layout.ids):
            return prefix.states
        if self.decoder is not None and prefix is not None:
            states = self.decoder.hidden(layout, raise_if_closed, prefix.kv)
            return torch.cat([states, prefix.states])
        if self.decoder is not None:
            return self.decoder.hidden(layout, raise_if_closed)
        if self.mode == ForwardMode.SEQUENTIAL:
            sequences = torch.split(layout.ids, [len(slots) for slots in layout.slots])
            return torch.cat([self.hidden_padded(ids[None])[0] for ids in sequences])
        positions = layout.positions[None]
        return self.hidden_padded(layout.ids[None], position_ids=positions, layout=layout)[0]

    def shared_prefix(self, tokens: Tokens) -> SharedPrefix | None:
        """Return a prefix for layouts that begin with it; None in the modes of transformers."""
        return None if self.decoder is None else SharedPrefix(self.decoder, tokens, self.device)

    def hidden_padded(self, ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """(R, T) ids to (R, T, H) by transformers.

        Rows may be padded on the right: attention is causal, so padding does not reach the tokens.
        """
        raise_if_closed()
        states: torch.Tensor = self.model.base_model(
            input_ids=ids, use_cache="past_key_values" in kwargs, **kwargs
        )[0]
        return states


def checkpoint_activations(model: Any) -> None:
    """Save only the input of each layer, and recompute activations in the backward pass.

    Chen et al., 2016, arXiv:1604.06174. Not by the switch of transformers, which also turns off the
    KV cache and turns on the dropout of the base. Raises BackendError for an architecture without
    such layers.
    """
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise BackendError(
            f"checkpointing: a {type(model).__name__} has no layers to checkpoint; "
            "set training.checkpointing=false"
        )
    for layer in layers:
        layer.forward = partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
        )


def choose_forward_mode(name: str, model: Any) -> ForwardMode:
    """Return the fastest mode that reproduces the model's logits, tried with a shared prefix.

    Raises BackendError for an architecture that changes its logits after the output layer in an
    unknown way, because losses and samplers use the output layer directly.
    """
    network = Network(model, ForwardMode.SEQUENTIAL)
    first = (np.arange(2 * MIN_SHARED) * 7 + 1) % network.vocab_size
    second = np.concatenate([first[: MIN_SHARED + 2], first[:MIN_SHARED]])
    sequences = [first, second, first[3:10]]
    with torch.inference_mode():
        expected = [_model_logits(network, ids) for ids in sequences]
        if not matches_logits(network, sequences, expected, same_operations=True):
            raise BackendError(
                f"{name}: a {type(model).__name__} changes its logits after the output layer in a "
                "way that the local adapter does not know; choose another architecture"
            )
        if _depends_on_length(model.config.get_text_config()):
            return ForwardMode.SEQUENTIAL
        candidates = [ForwardMode.FUSED] if is_llama_like(model) else []
        if model.config._attn_implementation == IMPLEMENTATION:
            candidates.append(ForwardMode.PACKED)
        for mode in candidates:
            if matches_logits(Network(model, mode), sequences, expected):
                return mode
        return ForwardMode.SEQUENTIAL


def cannot_batch(config: Any) -> bool:
    """Return true if the rows of a model cannot share a batch.

    That holds for layers other than attention, and for rotations that depend on the longest row.
    """
    layer_types = set(getattr(config, "layer_types", None) or ())
    rope = getattr(config, "rope_parameters", None) or {}
    rope_types = {
        parameters.get("rope_type")
        for parameters in (rope, *rope.values())
        if isinstance(parameters, dict)
    }
    return bool(layer_types - {"full_attention", "sliding_attention"}) or bool(
        rope_types & {"dynamic", "longrope"}
    )


def matches_logits(
    network: Network,
    sequences: Sequence[Any],
    expected: Sequence[torch.Tensor],
    *,
    same_operations: bool = False,
) -> bool:
    """Return true if a network computes these logits.

    With `same_operations` nothing is rounded differently, so that even bfloat16 is compared
    strictly.
    """
    layout = build_layout(sequences, network.device, network.min_shared)
    try:
        states = network.hidden(layout)
        computed = [network.head(states[slots]).float() for slots in layout.slots]
    except TypeError:  # the model takes no layout
        return False
    exact = next(network.model.parameters()).dtype in (torch.float32, torch.float64)
    bound, share = (1e-3, 1.0) if exact or same_operations else (0.1, 0.75)
    return all(
        whole.shape == logits.shape and _is_close(logits, whole, bound, share)
        for whole, logits in zip(expected, computed, strict=True)
    )


def _depends_on_length(config: Any) -> bool:
    """Return true for sliding windows and for `cannot_batch`; a short trial would miss both."""
    layer_types = set(getattr(config, "layer_types", None) or ())
    has_window = getattr(config, "sliding_window", None) is not None
    return has_window or "sliding_attention" in layer_types or cannot_batch(config)


def _model_logits(network: Network, ids: Array) -> torch.Tensor:
    """(T,) ids to (T, V) float32 logits as the model computes them."""
    on_device = torch.from_numpy(ids)[None].to(network.device)
    logits: torch.Tensor = network.model(input_ids=on_device, use_cache=False).logits[0].float()
    return logits


def _is_close(logits: torch.Tensor, expected: torch.Tensor, bound: float, share: float) -> bool:
    """Compare (T, V) logits: close in that share of the tokens, relative to the expected spread.

    A wrong attention or sum is further off in most tokens; different rounding only in some
    (docs/benchmarks.md).
    """
    distance = (logits - expected).square().mean(-1).sqrt()
    return float(distance.quantile(share)) <= bound * float(expected.std())

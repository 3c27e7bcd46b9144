"""Networks: a body that computes hidden states, a head for logits, and a forward mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import structlog
import torch
from torch import nn

from adapters.peft.batching.packed_layout import PackedLayout, build_layout
from adapters.peft.batching.packing import MIN_SHARED, NO_SHARING
from adapters.peft.model.decoder import Decoder, fused_obstacle
from adapters.peft.model.hf_attention import IMPLEMENTATION
from adapters.peft.model.logit_change import ChangedHead, read_logit_changes
from adapters.peft.model.shared_prefix import SharedPrefix
from adapters.peft.runtime.worker import raise_if_closed
from kitchen.errors import BackendError
from kitchen.types import Array, FullWeights, Tokens, Trainable

log = structlog.get_logger("kitchen.peft")


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
        obstacles = forward_obstacles(model)
        for mode in ForwardMode:
            if mode in obstacles:
                continue
            if mode == ForwardMode.SEQUENTIAL or matches_logits(
                Network(model, mode), sequences, expected
            ):
                return mode
            log.warning(f"{name}: {mode} would change the logits of the model, so it is not used")
        raise AssertionError("one sequence at a time is always possible")


def forward_obstacles(model: Any, trainable: Trainable | None = None) -> Mapping[ForwardMode, str]:
    """Return the modes that a model cannot have, each with the reason as a clause.

    Weights are not read, so a preview gives what `choose_forward_mode` goes by. `trainable` are
    weights to train.
    """
    if (reason := _length_obstacle(model.config.get_text_config())) is not None:
        return {ForwardMode.FUSED: reason, ForwardMode.PACKED: reason}
    obstacles = {}
    if reason := fused_obstacle(model) or _training_obstacle(trainable):
        obstacles[ForwardMode.FUSED] = reason
    if getattr(model.config.get_text_config(), "alibi", False):
        obstacles[ForwardMode.PACKED] = "its attention is biased by distance (ALiBi)"
    implementation = model.config._attn_implementation
    if implementation not in (IMPLEMENTATION, "sdpa"):  # the former replaces the latter
        obstacles[ForwardMode.PACKED] = f"its attention is computed as {implementation!r}"
    return obstacles


def describe_mode(obstacles: Mapping[ForwardMode, str]) -> str:
    """Return whether a model has the fastest mode, which mode it has otherwise, and why."""
    mode = next(mode for mode in ForwardMode if mode not in obstacles)
    if mode == ForwardMode.FUSED:
        return f"yes: {mode}"
    return f"no: {mode}, because {' and '.join(dict.fromkeys(obstacles.values()))}"


def _training_obstacle(trainable: Trainable | None) -> str | None:
    """Return why hand-written layers cannot train some weights."""
    if isinstance(trainable, FullWeights):
        return "hand-written layers do not train all weights"
    if trainable is not None and trainable.dropout:
        return "hand-written layers have no dropout"
    if trainable is not None and trainable.kind == "dora":
        return "hand-written layers do not train DoRA"
    return None


def cannot_batch(config: Any) -> bool:
    """Return true if the rows of a model cannot share a batch."""
    return _batch_obstacle(config) is not None


def _batch_obstacle(config: Any) -> str | None:
    """Return why rows cannot share a batch, as a clause.

    Reasons are layers other than attention, and rotations that depend on the longest row.
    """
    layer_types = set(getattr(config, "layer_types", None) or ())
    rope = getattr(config, "rope_parameters", None) or {}
    rope_types = {
        str(parameters.get("rope_type"))
        for parameters in (rope, *rope.values())
        if isinstance(parameters, dict)
    }
    if others := layer_types - {"full_attention", "sliding_attention"}:
        return f"it has layers other than attention ({', '.join(sorted(others))})"
    if longer := rope_types & {"dynamic", "longrope"}:
        return f"its rotary embeddings depend on the length ({', '.join(sorted(longer))})"
    return None


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
    return all(
        whole.shape == logits.shape
        and is_close(network.model, logits, whole, same_operations=same_operations)
        for whole, logits in zip(expected, computed, strict=True)
    )


def _length_obstacle(config: Any) -> str | None:
    """Return why sequences are computed one at a time: short trials would miss these reasons."""
    if (reason := _batch_obstacle(config)) is not None:
        return reason
    if (window := getattr(config, "sliding_window", None)) is not None:
        return f"it has sliding windows ({window:,} tokens)"
    layer_types = getattr(config, "layer_types", None) or ()
    return "it has sliding windows" if "sliding_attention" in layer_types else None


def _model_logits(network: Network, ids: Array) -> torch.Tensor:
    """(T,) ids to (T, V) float32 logits as the model computes them."""
    on_device = torch.from_numpy(ids)[None].to(network.device)
    logits: torch.Tensor = network.model(input_ids=on_device, use_cache=False).logits[0].float()
    return logits


def is_close(
    model: Any,
    logits: torch.Tensor,
    expected: torch.Tensor,
    *,
    same_operations: bool = False,
    share: float = 1.0,
) -> bool:
    """Compare (T, V) logits of a model, relative to the expected spread, in a share of the tokens.

    In low precision the share is three quarters, unless `same_operations` computed the logits.
    A wrong attention or sum is further off in most tokens; different rounding only in some
    (docs/benchmarks.md).
    """
    exact = next(model.parameters()).dtype in (torch.float32, torch.float64)
    exact = exact and not getattr(model, "is_quantized", False)
    bound, share = (1e-3, share) if exact or same_operations else (0.1, 0.75)
    distance = (logits - expected).square().mean(-1).sqrt()
    return float(distance.quantile(share)) <= bound * float(expected.std())

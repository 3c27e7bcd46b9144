"""A tree of modules as losses and samplers see it: a body that gives hidden states and a head that
gives logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from adapters.peft.batching.packed_layout import Layout, lay_out
from adapters.peft.batching.packing import LEAST, NEVER
from adapters.peft.model.decoder import Decoder, fits
from adapters.peft.model.hf_attention import NAME
from adapters.peft.model.shared_prefix import Begun
from adapters.peft.runtime.worker import stop_if_closed
from kitchen.errors import BackendError
from kitchen.types import Tokens


class Way(StrEnum):
    """How the body is computed, the fastest first."""

    FUSED = "by hand, over tokens without padding"
    TILED = "by transformers, over tokens without padding"
    ALONE = "by transformers, one sequence after the other"


class Network:
    """A body and a head; `way` is one that `way_of` has found to give the right states."""

    def __init__(self, model: Any, way: Way, *, checkpointing: bool = False) -> None:
        config = model.config.get_text_config()
        self.model, self.way = model, way
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)
        self.context = int(getattr(config, "max_position_embeddings", 0) or 2**31)  # tokens
        self.layers = int(config.num_hidden_layers)
        self.device = model.get_input_embeddings().weight.device
        self.decoder = Decoder(model, checkpointing=checkpointing) if way == Way.FUSED else None
        # tokens that sequences must begin with alike to share them
        self.least = NEVER if way == Way.ALONE else LEAST
        if checkpointing and self.decoder is None:
            checkpoint_activations(model)

    @property
    def head(self) -> nn.Module:
        """(..., H) to (..., V) logits."""
        head: nn.Module = self.model.get_output_embeddings()
        return head

    def hidden(self, layout: Layout, begun: Begun | None = None) -> torch.Tensor:
        """(N, H) states of a layout's tokens, and behind them those of what it begins with."""
        if begun is not None and not len(layout.ids):
            return begun.states
        if self.decoder is not None and begun is not None:
            return torch.cat(
                [self.decoder.hidden(layout, stop_if_closed, begun.keys), begun.states]
            )
        if self.decoder is not None:
            return self.decoder.hidden(layout, stop_if_closed)
        if self.way == Way.ALONE:
            pieces = torch.split(layout.ids, [len(places) for places in layout.places])
            return torch.cat([self.padded(piece[None])[0] for piece in pieces])
        return self.padded(layout.ids[None], position_ids=layout.positions[None], layout=layout)[0]

    def begun(self, tokens: Tokens) -> Begun | None:
        """For layouts that begin with these tokens; None where transformers computes."""
        return None if self.decoder is None else Begun(self.decoder, tokens, self.device)

    def padded(self, ids: torch.Tensor, **more: Any) -> torch.Tensor:
        """(R, T) ids to (R, T, H); rows may be padded on the right, for what follows a token does
        not reach it.
        """
        stop_if_closed()
        states: torch.Tensor = self.model.base_model(
            input_ids=ids, use_cache="past_key_values" in more, **more
        )[0]
        return states


def checkpoint_activations(model: Any) -> None:
    """Keep only what goes into each layer, and compute the rest again on the way back (Chen et al.,
    2016, arXiv:1604.06174). Raises BackendError for an architecture without such layers.

    By hand, for the switch that transformers has also turns off the cache, and turns on the dropout
    of the base.
    """
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise BackendError(
            f"checkpointing: a {type(model).__name__} has no layers to checkpoint; leave it off"
        )
    for layer in layers:
        layer.forward = partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
        )


def way_of(name: str, model: Any) -> Way:
    """The fastest way that gives what the model itself gives, on a trial with a shared beginning.

    Raises BackendError for an architecture that changes its logits after the output layer: losses
    and samples read them off it.
    """
    network = Network(model, Way.ALONE)
    first = (np.arange(2 * LEAST) * 7 + 1) % network.vocabulary
    sequences = [first, np.concatenate([first[: LEAST + 2], first[:LEAST]]), first[3:10]]
    with torch.inference_mode():
        expected = [
            model(input_ids=torch.from_numpy(ids)[None].to(network.device), use_cache=False)
            .logits[0]
            .float()
            for ids in sequences
        ]
        if not _agrees(network, sequences, expected, same=True):
            raise BackendError(
                f"{name}: a {type(model).__name__} changes its logits after the output layer, "
                "which the "
                "local adapter cannot train; choose another architecture"
            )
        ways = [Way.FUSED] * fits(model) + [Way.TILED] * (model.config._attn_implementation == NAME)
        if _changes_with_length(model.config.get_text_config()):
            return Way.ALONE
        return next(
            (way for way in ways if _agrees(Network(model, way), sequences, expected)), Way.ALONE
        )


def _changes_with_length(config: Any) -> bool:
    """Windows, and what stands alone: a short trial misses them."""
    window, kinds = (
        getattr(config, "sliding_window", None),
        set(getattr(config, "layer_types", None) or ()),
    )
    return window is not None or "sliding_attention" in kinds or stands_alone(config)


def stands_alone(config: Any) -> bool:
    """Layers that are no attention, or rotations by the longest sequence there is: rows cannot
    share a batch.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    rope = getattr(config, "rope_parameters", None) or {}
    turns = {each.get("rope_type") for each in (rope, *rope.values()) if isinstance(each, dict)}
    return bool(kinds - {"full_attention", "sliding_attention"}) or bool(
        turns & {"dynamic", "longrope"}
    )


def _agrees(
    network: Network,
    sequences: Sequence[Any],
    expected: Sequence[torch.Tensor],
    *,
    same: bool = False,
) -> bool:
    """Whether it gives these logits; with `same`, by the same operations, so that nothing is
    rounded otherwise.
    """
    layout = lay_out(sequences, network.device, network.least)
    try:
        states = network.hidden(layout)
        found = [network.head(states[places]).float() for places in layout.places]
    except TypeError:  # it takes no layout
        return False
    exact = next(network.model.parameters()).dtype in (torch.float32, torch.float64)
    bound, share = (1e-3, 1.0) if exact or same else (0.1, 0.75)
    return all(
        whole.shape == logits.shape and _near(logits, whole, bound, share)
        for whole, logits in zip(expected, found, strict=True)
    )


def _near(logits: torch.Tensor, expected: torch.Tensor, bound: float, share: float) -> bool:
    """(T, V) each: so near in that share of the tokens, by the spread of what is expected.

    What attends or adds otherwise is further off in most; what is rounded otherwise is, in some
    (docs/benchmarks.md).
    """
    away = (logits - expected).square().mean(-1).sqrt()
    return float(away.quantile(share)) <= bound * float(expected.std())

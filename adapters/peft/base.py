"""A frozen base model, in two parts: a body that gives hidden states and a head that gives logits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adapters.peft.attention import use_plain_attention
from adapters.peft.folders import base_name, is_adapter
from adapters.peft.settings import Settings
from adapters.peft.worker import stop_if_closed
from kitchen.errors import BackendError
from kitchen.ports.hub import HubClient


@dataclass(frozen=True, eq=False)
class Base:
    """Weights as they came, shared by all who train or sample beside them."""

    name: str
    folder: Path
    sha256: str
    model: Any  # of transformers, frozen

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def tree(self) -> Any:
        """Modules of one's own over the same weights, to put LoRA layers into."""
        return copy.deepcopy(self.model, {id(shared): shared for shared in self.model.parameters()})


class Network:
    """A tree of modules as the loss and the sampler see it."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)
        self.context = int(getattr(config, "max_position_embeddings", 0) or 2**31)  # tokens
        self.layers = int(config.num_hidden_layers)
        self.device = model.get_input_embeddings().weight.device

    @property
    def head(self) -> nn.Module:
        """(..., H) to (..., V) logits."""
        head: nn.Module = self.model.get_output_embeddings()
        return head

    def hidden(self, ids: torch.Tensor, **more: Any) -> torch.Tensor:
        """(R, T) ids to (R, T, H); rows may be padded on the right, for what follows a token does not reach it."""
        stop_if_closed()
        states: torch.Tensor = self.model.base_model(input_ids=ids, use_cache="past_key_values" in more, **more)[0]
        return states


def checkpoint_activations(model: Any) -> None:
    """Keep only what goes into each layer, and compute the rest again on the way back (Chen et al., 2016,
    arXiv:1604.06174). Raises BackendError for an architecture without such layers.

    By hand, for the switch that transformers has also turns off the cache, and turns on the dropout of the base.
    """
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise BackendError(f"checkpointing: a {type(model).__name__} has no layers to checkpoint; leave it off")
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def load_base(hub: HubClient, name: str, settings: Settings, device: torch.device, dtype: torch.dtype) -> Base:
    """Raises BackendError for an unknown name, for an adapter's folder and for an architecture that does not fit."""
    folder = hub.fetch(name)
    if is_adapter(folder):
        raise BackendError(f"{name} is a LoRA adapter, not a whole model: sample from it as it is, or open its base "
                           f"model {base_name(folder)!r} for training")
    model = _open(folder, settings, dtype)
    model.requires_grad_(False).eval()
    if settings.quantization == "none":
        model.to(device)
    _check_head(name, model)
    if device.type == "cpu" and dtype == torch.bfloat16 and model.config._attn_implementation == "sdpa":
        use_plain_attention(model)
    return Base(name, folder, hub.sha256(name), model)


def _open(folder: Path, settings: Settings, dtype: torch.dtype) -> Any:
    import transformers

    library: Any = transformers  # it leaves much untyped
    more = dict[str, Any]()
    if settings.quantization == "4bit":
        more["quantization_config"] = library.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
        more["device_map"] = {"": 0}
    try:
        with without_bars():
            return library.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, **more)
    except (OSError, ValueError, KeyError) as error:
        raise BackendError(f"{folder}: no model can be opened there: {error}") from error


@contextmanager
def without_bars() -> Iterator[None]:
    """transformers draws no progress bars in here."""
    import transformers

    library: Any = transformers
    logging = library.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _check_head(name: str, model: Any) -> None:
    """Losses and samples read logits off the output layer: an architecture that changes them further is refused."""
    network = Network(model)
    ids = torch.arange(4, device=network.device)[None] % network.vocabulary
    with torch.inference_mode():
        whole = model(input_ids=ids, use_cache=False).logits.float()
        parts = network.head(network.hidden(ids)).float()
    if whole.shape != parts.shape or not torch.allclose(whole, parts, rtol=2e-2, atol=2e-2):
        raise BackendError(f"{name}: a {type(model).__name__} changes its logits after the output layer, which the "
                           "local adapter cannot train; choose another architecture")

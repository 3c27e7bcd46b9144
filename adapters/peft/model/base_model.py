"""A frozen base model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from adapters.folders import base_name, is_adapter
from adapters.peft.model.decoder import fits, gather
from adapters.peft.model.hf_attention import use_tiles
from adapters.peft.model.network import Way, way_of
from adapters.peft.settings import Settings
from kitchen.errors import BackendError
from kitchen.ports.hub import HubClient


@dataclass(frozen=True, eq=False)
class Base:
    """Weights as they came, shared by all who train or sample beside them."""

    name: str
    folder: Path
    sha256: str
    model: Any  # of transformers, frozen
    way: Way

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def tree(self) -> Any:
        """Modules of one's own over the same weights, to put LoRA layers into."""
        return copy.deepcopy(self.model, {id(shared): shared for shared in self.model.parameters()})


def load_base(
    hub: HubClient, name: str, settings: Settings, device: torch.device, dtype: torch.dtype
) -> Base:
    """Raises BackendError for an unknown name, for an adapter's folder and for an architecture that
    does not fit.
    """
    folder = hub.fetch(name)
    if is_adapter(folder):
        raise BackendError(
            f"{name} is a LoRA adapter, not a whole model: sample from it as it is, or open its "
            "base "
            f"model {base_name(folder)!r} for training"
        )
    model = _open(folder, settings, device, dtype)
    model.requires_grad_(False).eval()
    if settings.quantization == "none":
        model.to(device)
    if fits(model):
        gather(model)
    if model.config._attn_implementation == "sdpa":
        use_tiles(model)
    return Base(name, folder, hub.sha256(name), model, way_of(name, model))


def _open(folder: Path, settings: Settings, device: torch.device, dtype: torch.dtype) -> Any:
    import transformers

    library: Any = transformers  # it leaves much untyped
    more = dict[str, Any]()
    if settings.quantization == "4bit":
        more["quantization_config"] = library.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
        more["device_map"] = {"": device}
    try:
        with without_bars():
            return library.AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, **more
            )
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

"""Weights for other programs: an adapter's folder as PEFT writes it, or a whole model with the
adapter added in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adapters.folders import demand_base, is_adapter, peft_base, read_config, tokenizer_files
from adapters.peft.checkpoints import CONFIG, WEIGHTS, Saved, adapter_lora, read
from adapters.peft.model.base_model import Base, load_base, without_bars
from adapters.peft.model.lora import Adapter, adapted_paths
from adapters.peft.runtime.worker import ALONE
from adapters.peft.sampling.frozen_model import check_base
from adapters.peft.settings import Settings
from kitchen.backend.atomic_folder import appearing, check_free
from kitchen.errors import BackendError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.hub import HubClient
from kitchen.types import Checkpoint, Lora


@dataclass(frozen=True)
class _Adapter:
    """LoRA weights in PEFT's format, and the model that they belong to."""

    name: str
    config: dict[str, Any]
    weights: bytes
    lora: Lora
    model: str  # as a hub knows it
    base: Path
    tokenizer: Path  # a folder that has one


def export(
    hub: HubClient, blobs: BlobStore, weights: str | Checkpoint, folder: Path, *, merged: bool
) -> None:
    """Raises BackendError where there is no adapter to export, ConfigError for a folder in use."""
    check_free(folder)
    adapter = (
        _of_checkpoint(hub, blobs, weights)
        if isinstance(weights, Checkpoint)
        else _of_folder(hub, weights)
    )
    with appearing(folder) as part, ALONE:
        if merged:
            _write_merged(adapter, hub, part)
        else:
            config = {**adapter.config, **peft_base(adapter.model, adapter.base)}
            (part / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
            (part / WEIGHTS).write_bytes(adapter.weights)
        for path in tokenizer_files(adapter.tokenizer):
            shutil.copyfile(path, part / path.name)


def _of_checkpoint(hub: HubClient, blobs: BlobStore, checkpoint: Checkpoint) -> _Adapter:
    saved: Saved = read(blobs, checkpoint)
    base = hub.fetch(saved.model)
    check_base(saved, hub.sha256(saved.model))
    config = json.loads(saved.files[CONFIG])
    return _Adapter(
        checkpoint.path, config, saved.files[WEIGHTS], saved.lora, saved.model, base, base
    )


def _of_folder(hub: HubClient, name: str) -> _Adapter:
    folder = hub.fetch(name)
    if not is_adapter(folder):
        raise BackendError(
            f"{name} is a whole model with nothing trained beside it, so there is nothing to "
            "export: "
            f"other programs open it as it is, in {folder}"
        )
    model, config = demand_base(name, folder), read_config(folder)
    base = hub.fetch(model)
    tokenizer = folder if tokenizer_files(folder) else base
    return _Adapter(
        name,
        config,
        (folder / WEIGHTS).read_bytes(),
        adapter_lora(config, name),
        model,
        base,
        tokenizer,
    )


def _write_merged(adapter: _Adapter, hub: HubClient, part: Path) -> None:
    from safetensors.torch import load

    # float32 whatever the base is in: rounded to bfloat16 the sum would say something else, by 1e-2
    # nats
    base = load_base(hub, adapter.model, Settings(), torch.device("cpu"), torch.float32)
    _merge(base, adapter.lora, load(adapter.weights), adapter.name)
    with without_bars():
        base.model.save_pretrained(part)


def _merge(base: Base, lora: Lora, tensors: Mapping[str, torch.Tensor], source: str) -> None:
    """W + scale · B A, in place of W."""
    model = base.model
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    put = Adapter(model, lora, torch.float32, adapted_paths(tensors))
    put.load(tensors, source)
    for path, layer in put.layers.items():
        plain: Any = layer.base
        moved = (layer.b.detach() @ layer.a.detach()) * layer.scale  # (out, in)
        if type(plain).__name__ == "Conv1D":
            moved = moved.t()
        if plain is head and plain.weight is embedding.weight:  # the embedding stays as it was
            model.config.tie_word_embeddings = False
        plain.weight = nn.Parameter(plain.weight + moved, requires_grad=False)
        model.set_submodule(path, plain)

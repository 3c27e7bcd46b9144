"""Export of weights for other programs: a PEFT adapter folder, or a whole model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adapters.folders import CONFIG, base_of, copy_files, peft_base_fields, tokenizer_files
from adapters.peft.adapter_folder import WEIGHTS, read_adapter
from adapters.peft.checkpoints import SavedCheckpoint, read_checkpoint
from adapters.peft.exporting.gguf_file import check_gguf, check_quantization, write_gguf
from adapters.peft.model.base_model import BaseModel, load_base, open_base
from adapters.peft.model.lora import LoraAdapter, adapted_paths, check_fit
from adapters.peft.runtime.worker import COMPUTE_LOCK
from adapters.peft.sampling.frozen_model import check_base
from adapters.peft.settings import Settings
from adapters.progress_bars import progress_bars_disabled
from adapters.tokenizer import load_tokenizer
from kitchen.backend.atomic_folder import atomic_folder, check_folder_unused
from kitchen.backend.folder_files import check_inside
from kitchen.errors import BackendError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.hub import HubClient
from kitchen.types import Checkpoint, Lora


@dataclass(frozen=True)
class _PeftAdapter:
    """LoRA weights in PEFT's format, and the model that they belong to."""

    name: str
    config: dict[str, Any]
    weights: bytes
    lora: Lora
    model: str  # its name on the hub
    base: Path
    tokenizer: Path  # a folder with the tokenizer


def export(
    hub: HubClient, blobs: BlobStore, weights: str | Checkpoint, folder: Path, *, merged: bool
) -> None:
    """Export weights to a new folder; a model whose weights were all trained is whole either way.

    Raises BackendError if there is nothing to export, ConfigError for a folder in use.
    """
    check_folder_unused(folder)
    found = _find_weights(hub, blobs, weights)
    with atomic_folder(folder) as part, COMPUTE_LOCK:
        if isinstance(found, SavedCheckpoint):
            found.write_model(part)
            return
        if merged:
            with progress_bars_disabled():
                _merged_model(found, hub).save_pretrained(part)
        else:
            config = {**found.config, **peft_base_fields(found.model, found.base)}
            (part / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
            (part / WEIGHTS).write_bytes(found.weights)
        files = tokenizer_files(found.tokenizer)
        check_inside(found.tokenizer, files.values())
        copy_files(files, part)


def export_gguf(
    hub: HubClient,
    blobs: BlobStore,
    weights: str | Checkpoint,
    file: Path,
    *,
    quantization: str,
    chat_template: str | None,
) -> None:
    """Write the whole model as a GGUF file; a `chat_template` replaces the tokenizer's.

    Raises BackendError, before the model is loaded, if a GGUF file cannot hold it.
    """
    check_quantization(quantization)
    found = _find_weights(hub, blobs, weights)
    with _whole_folder(found) as folder:
        if isinstance(found, SavedCheckpoint):
            name, tokenizer = found.checkpoint.path, found.tokenizer(folder)
        else:
            name, tokenizer = str(folder), load_tokenizer(found.tokenizer, folder)
        checked = check_gguf(folder, tokenizer, name)
        with COMPUTE_LOCK:
            if isinstance(found, SavedCheckpoint):
                model = _open_whole(name, folder)
            else:
                model = _merged_model(found, hub)
            write_gguf(checked, model, file, quantization, chat_template or tokenizer.chat_template)


def _whole_folder(found: _PeftAdapter | SavedCheckpoint) -> AbstractContextManager[Path]:
    """The folder of the checkpoint's own model, or of an adapter's base."""
    if isinstance(found, SavedCheckpoint):
        return found.model_folder()
    return nullcontext(found.base)


def _open_whole(name: str, folder: Path) -> Any:
    return open_base(name, folder, "", Settings(), torch.device("cpu"), torch.float32).model


def _find_weights(
    hub: HubClient, blobs: BlobStore, weights: str | Checkpoint
) -> _PeftAdapter | SavedCheckpoint:
    if isinstance(weights, Checkpoint):
        return _from_checkpoint(hub, blobs, weights)
    return _from_folder(hub, weights)


def _from_checkpoint(
    hub: HubClient, blobs: BlobStore, checkpoint: Checkpoint
) -> _PeftAdapter | SavedCheckpoint:
    saved = read_checkpoint(blobs, checkpoint, weights_only=True)
    if saved.lora is None:
        return saved
    model = base_of(hub, saved.model)
    base, folder = hub.fetch(model), hub.fetch(saved.model)
    check_base(saved, hub.sha256(model))
    return _PeftAdapter(
        checkpoint.path,
        json.loads(saved.files[CONFIG]),
        saved.files[WEIGHTS],
        saved.lora,
        model,
        base,
        folder if tokenizer_files(folder) else base,
    )


def _from_folder(hub: HubClient, name: str) -> _PeftAdapter:
    adapter = read_adapter(hub, name)
    if adapter is None:
        raise BackendError(
            f"{name} is a whole model without an adapter, so there is nothing to export: other "
            f"programs open it as it is, in {hub.fetch(name)}"
        )
    check_inside(adapter.folder, adapter.folder.glob("adapter_*"))
    adapter.tensors()  # refuses those that are not finite
    base = hub.fetch(adapter.base)
    return _PeftAdapter(
        name,
        dict(adapter.config),
        (adapter.folder / WEIGHTS).read_bytes(),
        adapter.lora,
        adapter.base,
        base,
        adapter.folder if tokenizer_files(adapter.folder) else base,
    )


def _merged_model(adapter: _PeftAdapter, hub: HubClient) -> Any:
    from safetensors.torch import load

    check_inside(adapter.base, adapter.base.iterdir())
    # float32 whatever the dtype of the base: a sum rounded to bfloat16 changes results by 1e-2 nats
    base = load_base(hub, adapter.model, Settings(), torch.device("cpu"), torch.float32)
    tensors = load(adapter.weights)
    check_fit(base.model, adapter.config, tensors, adapter.name)
    _merge(base, adapter.lora, tensors, adapter.name)
    return base.model


def _merge(base: BaseModel, lora: Lora, tensors: Mapping[str, torch.Tensor], source: str) -> None:
    """Replace each W by the matrix that is W with its LoRA weights."""
    model = base.model
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    adapter = LoraAdapter(model, lora, torch.float32, adapted_paths(tensors))
    adapter.load(tensors, source)
    for path, layer in adapter.layers.items():
        linear: Any = layer.base
        merged = layer.merged()  # (out, in)
        if type(linear).__name__ == "Conv1D":
            merged = merged.t().contiguous()
        if linear is head and linear.weight is embedding.weight:  # the embedding does not change
            model.config.tie_word_embeddings = False
        linear.weight = nn.Parameter(merged, requires_grad=False)
        model.set_submodule(path, linear)

"""Weights and optimisers as blobs: safetensors with a digest each, the list of them written last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from adapters.peft.model.lora import Adapter
from kitchen.errors import BackendError, ConfigError, CorruptCheckpoint
from kitchen.ports.blobs import BlobStore, blob_name
from kitchen.types import Checkpoint, Lora

MANIFEST = "checkpoint.json"
WEIGHTS, CONFIG, OPTIMISER = (
    "adapter_model.safetensors",
    "adapter_config.json",
    "optimizer.safetensors",
)

Kind = Literal["training", "weights"]


@dataclass(frozen=True)
class Saved:
    """What a checkpoint says of itself, and its files, each with the digest that was written down."""

    checkpoint: Checkpoint
    model: str
    model_sha256: str
    lora: Lora
    calls: int  # of forward_backward before it was saved
    files: Mapping[str, bytes]

    def tensors(self, file: str) -> dict[str, torch.Tensor]:
        from safetensors.torch import load

        return load(self.files[file])


def write(
    blobs: BlobStore,
    name: str,
    files: Mapping[str, bytes],
    meta: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> Checkpoint:
    """Raises ConfigError for a name in use; what a killed attempt left under it is written over."""
    try:
        blob_name(name)
    except ValueError as error:
        raise ConfigError(f"checkpoint name: {error}") from error
    if blobs.read(f"{name}/{MANIFEST}") is not None:
        if not overwrite:
            raise ConfigError(
                f"checkpoint {name!r} exists already; choose another name, or delete it first"
            )
        _delete(blobs, name)
    for file, data in files.items():
        blobs.write(f"{name}/{file}", data)
    digests = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
    manifest = json.dumps(
        {"format": 1, **meta, "files": digests}, indent=2, sort_keys=True
    ).encode()
    blobs.write(f"{name}/{MANIFEST}", manifest)
    return Checkpoint(name, meta["step"], meta["kind"], hashlib.sha256(manifest).hexdigest())


def read(blobs: BlobStore, checkpoint: Checkpoint) -> Saved:
    """Everything, every digest proved; raises CorruptCheckpoint that names the blob."""
    handle, manifest = _manifest(blobs, checkpoint.path)
    if checkpoint.sha256 not in ("", handle.sha256):
        raise CorruptCheckpoint(
            f"{checkpoint.path}/{MANIFEST} is not the one that was saved: its SHA-256 is "
            f"{handle.sha256[:16]}…, not {checkpoint.sha256[:16]}…; use an earlier checkpoint"
        )
    files = {
        file: _proved(blobs, f"{checkpoint.path}/{file}", digest)
        for file, digest in manifest["files"].items()
    }
    return Saved(
        handle,
        manifest["model"],
        manifest["model_sha256"],
        Lora(**manifest["lora"]),
        manifest["calls"],
        files,
    )


def listed(blobs: BlobStore, prefix: str) -> Sequence[Checkpoint]:
    names = [
        name.removesuffix(f"/{MANIFEST}")
        for name in blobs.list(prefix)
        if name.endswith(f"/{MANIFEST}")
    ]
    return [_manifest(blobs, name)[0] for name in names]


def forget(blobs: BlobStore, checkpoint: Checkpoint) -> None:
    _delete(blobs, checkpoint.path)


def weight_files(adapter: Adapter, model: str) -> dict[str, bytes]:
    """As `PeftModel.save_pretrained` writes them."""
    from safetensors.torch import save

    return {
        WEIGHTS: save(adapter.tensors(), {"format": "pt"}),
        CONFIG: _peft_config(adapter, model),
    }


def meta(
    kind: Kind, step: int, calls: int, model: str, model_sha256: str, lora: Lora
) -> dict[str, Any]:
    return {
        "kind": kind,
        "step": step,
        "calls": calls,
        "model": model,
        "model_sha256": model_sha256,
        "lora": asdict(lora),
    }


def adapter_lora(config: Mapping[str, Any], source: str) -> Lora:
    """The settings of a LoRA adapter of PEFT's; raises BackendError for what is more than plain
    LoRA.
    """
    unusual = (
        "use_dora",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
        "lora_bias",
        "trainable_token_indices",
    )
    beyond = [name for name in unusual if config.get(name)]
    if config.get("peft_type") != "LORA" or beyond:
        raise BackendError(
            f"{source}: the adapter is {config.get('peft_type')} with {beyond or 'no extras'}, and "
            "the "
            "local adapter reads plain LoRA"
        )
    return Lora(rank=int(config["r"]), alpha=float(config["lora_alpha"]))


def _peft_config(adapter: Adapter, model: str) -> bytes:
    from peft import LoraConfig, TaskType

    build: Any = LoraConfig  # its types say that alpha is whole, which it need not be
    config = build(
        r=adapter.lora.rank,
        lora_alpha=adapter.scale * adapter.lora.rank,
        lora_dropout=adapter.lora.dropout,
        target_modules=adapter.targets,
        base_model_name_or_path=model,
        task_type=TaskType.CAUSAL_LM,
        inference_mode=True,
        fan_in_fan_out=adapter.transposed,
    ).to_dict()
    plain = {
        key: sorted(value) if isinstance(value, set) else value for key, value in config.items()
    }
    return json.dumps(plain, indent=2, sort_keys=True).encode()


def _manifest(blobs: BlobStore, path: str) -> tuple[Checkpoint, Mapping[str, Any]]:
    data = blobs.read(f"{path}/{MANIFEST}")
    if data is None:
        raise CorruptCheckpoint(
            f"{path}/{MANIFEST} is missing: the checkpoint was deleted or never finished; "
            "use an earlier one"
        )
    try:
        manifest: Mapping[str, Any] = json.loads(data)
        handle = Checkpoint(
            path, manifest["step"], manifest["kind"], hashlib.sha256(data).hexdigest()
        )
        for key, kind in (
            ("files", dict),
            ("lora", dict),
            ("calls", int),
            ("model", str),
            ("model_sha256", str),
        ):
            if not isinstance(manifest[key], kind):
                raise TypeError(f"{key} is {manifest[key]!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpoint(
            f"{path}/{MANIFEST} is cut short or overwritten ({error}); use an earlier one"
        ) from error
    return handle, manifest


def _proved(blobs: BlobStore, name: str, digest: str) -> bytes:
    data = blobs.read(name)
    if data is None:
        raise CorruptCheckpoint(f"{name} is missing; use an earlier checkpoint")
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise CorruptCheckpoint(
            f"{name} is not what was saved: {len(data):,} bytes with SHA-256 {found[:16]}…, not "
            f"{digest[:16]}…; use an earlier checkpoint"
        )
    return data


def _delete(blobs: BlobStore, path: str) -> None:
    """The manifest first: what is half deleted is no checkpoint."""
    for file in (MANIFEST, OPTIMISER, CONFIG, WEIGHTS):
        blobs.delete(f"{path}/{file}")

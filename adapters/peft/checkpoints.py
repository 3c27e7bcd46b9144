"""Checkpoints in a blob store: safetensors with their digests, and a manifest written last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from adapters.folders import CONFIG
from adapters.peft.adapter_folder import WEIGHTS
from adapters.peft.model.lora import LoraAdapter, lora_alpha
from kitchen.errors import ConfigError, CorruptCheckpoint
from kitchen.ports.blobs import BlobStore, blob_name
from kitchen.safe_text import read_json
from kitchen.types import Checkpoint, Lora

MANIFEST = "checkpoint.json"
OPTIMISER = "optimizer.safetensors"
MANIFEST_TYPES = {"files": dict, "lora": dict, "calls": int, "model": str, "model_sha256": str}

Kind = Literal["training", "weights"]


@dataclass(frozen=True)
class SavedCheckpoint:
    """The contents of a checkpoint; the digest of each file has been checked."""

    checkpoint: Checkpoint
    model: str
    model_sha256: str
    lora: Lora
    calls: int  # of forward_backward before it was saved
    files: Mapping[str, bytes]

    def tensors(self, file: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a safetensors file."""
        from safetensors.torch import load

        return load(self.files[file])


def write_checkpoint(
    blobs: BlobStore,
    name: str,
    files: Mapping[str, bytes],
    metadata: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> Checkpoint:
    """Write a checkpoint; an unfinished one under its name is overwritten.

    Raises ConfigError for an invalid name, and for one in use unless `overwrite` is set.
    """
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
    contents = {"format": 1, **metadata, "files": digests}
    manifest = json.dumps(contents, indent=2, sort_keys=True).encode()
    blobs.write(f"{name}/{MANIFEST}", manifest)
    sha256 = hashlib.sha256(manifest).hexdigest()
    return Checkpoint(name, metadata["step"], metadata["kind"], sha256)


def read_checkpoint(blobs: BlobStore, checkpoint: Checkpoint) -> SavedCheckpoint:
    """Read a checkpoint and check every digest.

    Raises CorruptCheckpoint, which names the blob.
    """
    handle, manifest = _read_manifest(blobs, checkpoint.path)
    if checkpoint.sha256 not in ("", handle.sha256):
        raise CorruptCheckpoint(
            f"{checkpoint.path}/{MANIFEST} is not the one that was saved: its SHA-256 is "
            f"{handle.sha256[:16]}…, not {checkpoint.sha256[:16]}…; use an earlier checkpoint"
        )
    files = {
        file: _read_checked(blobs, f"{checkpoint.path}/{file}", digest)
        for file, digest in manifest["files"].items()
    }
    return SavedCheckpoint(
        handle,
        manifest["model"],
        manifest["model_sha256"],
        Lora(**manifest["lora"]),
        manifest["calls"],
        files,
    )


def list_checkpoints(blobs: BlobStore, prefix: str) -> Sequence[Checkpoint]:
    """Return the finished checkpoints whose names begin with a prefix."""
    end = f"/{MANIFEST}"
    names = [name.removesuffix(end) for name in blobs.list(prefix) if name.endswith(end)]
    return [_read_manifest(blobs, name)[0] for name in names]


def delete_checkpoint(blobs: BlobStore, checkpoint: Checkpoint) -> None:
    """Delete a checkpoint, finished or not."""
    _delete(blobs, checkpoint.path)


def weight_files(adapter: LoraAdapter, model: str) -> dict[str, bytes]:
    """Return the files of an adapter as `PeftModel.save_pretrained` writes them."""
    from safetensors.torch import save

    return {
        WEIGHTS: save(adapter.tensors(), {"format": "pt"}),
        CONFIG: _peft_config(adapter, model),
    }


def checkpoint_metadata(
    kind: Kind, step: int, calls: int, model: str, model_sha256: str, lora: Lora
) -> dict[str, Any]:
    """Return the entries of a manifest besides its files."""
    return {
        "kind": kind,
        "step": step,
        "calls": calls,
        "model": model,
        "model_sha256": model_sha256,
        "lora": asdict(lora),
    }


def _peft_config(adapter: LoraAdapter, model: str) -> bytes:
    from peft import LoraConfig, TaskType

    build: Any = LoraConfig  # its type hints demand an integer alpha, but PEFT accepts any number
    config = build(
        r=adapter.lora.rank,
        lora_alpha=lora_alpha(adapter.lora),
        use_rslora=adapter.lora.kind == "rslora",
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


def _read_manifest(blobs: BlobStore, path: str) -> tuple[Checkpoint, Mapping[str, Any]]:
    data = blobs.read(f"{path}/{MANIFEST}")
    if data is None:
        raise CorruptCheckpoint(
            f"{path}/{MANIFEST} is missing: the checkpoint was deleted or never finished; "
            "use an earlier one"
        )
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        manifest: Mapping[str, Any] = read_json(data)
        handle = Checkpoint(path, manifest["step"], manifest["kind"], sha256)
        for key, expected in MANIFEST_TYPES.items():
            if not isinstance(manifest[key], expected):
                raise TypeError(f"{key} is {manifest[key]!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpoint(
            f"{path}/{MANIFEST} is truncated or overwritten ({error}); use an earlier one"
        ) from error
    return handle, manifest


def _read_checked(blobs: BlobStore, name: str, digest: str) -> bytes:
    data = blobs.read(name)
    if data is None:
        raise CorruptCheckpoint(f"{name} is missing; use an earlier checkpoint")
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        raise CorruptCheckpoint(
            f"{name} is not what was saved: {len(data):,} bytes with SHA-256 {actual[:16]}…, not "
            f"{digest[:16]}…; use an earlier checkpoint"
        )
    return data


def _delete(blobs: BlobStore, path: str) -> None:
    """Delete the manifest first, so that a half-deleted checkpoint counts as none."""
    for file in (MANIFEST, OPTIMISER, CONFIG, WEIGHTS):
        blobs.delete(f"{path}/{file}")

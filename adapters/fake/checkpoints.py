"""Checkpoints of arrays in a blob store: files with digests, and a manifest written last."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kitchen.errors import ConfigError, CorruptCheckpoint
from kitchen.ports.blobs import BlobStore
from kitchen.safe_text import read_json
from kitchen.types import Array, Checkpoint

Arrays = Mapping[str, Array]
MANIFEST = "checkpoint.json"


def save_checkpoint(
    blobs: BlobStore,
    name: str,
    files: Mapping[str, Arrays],
    *,
    step: int,
    kind: str,
    overwrite: bool = False,
) -> Checkpoint:
    """Write each file, then the manifest; raises ConfigError for a name in use."""
    if blobs.read(f"{name}/{MANIFEST}") is not None and not overwrite:
        raise ConfigError(
            f"checkpoint {name!r} exists already; choose another name, or delete it first"
        )
    # without this, a kill from here on would leave the old manifest over new files
    blobs.delete(f"{name}/{MANIFEST}")
    digests = {}
    for file, arrays in files.items():
        data = _packed(arrays)
        blobs.write(f"{name}/{file}", data)
        digests[file] = hashlib.sha256(data).hexdigest()
    manifest = {"step": step, "kind": kind, "files": digests}
    manifest["sha256"] = _digest(manifest)
    blobs.write(f"{name}/{MANIFEST}", json.dumps(manifest, indent=2).encode())
    return _checkpoint(name, manifest)


def load_arrays(blobs: BlobStore, checkpoint: Checkpoint, file: str) -> Arrays:
    """Read one file of a checkpoint.

    Raises CorruptCheckpoint, which names the blob, or ConfigError for a file it never had.
    """
    manifest = _manifest(blobs, checkpoint.path)
    if checkpoint.sha256 not in ("", manifest["sha256"]):
        raise CorruptCheckpoint(
            f"{checkpoint.path}/{MANIFEST}: it is not the checkpoint that was saved"
        )
    if file not in manifest["files"]:
        raise ConfigError(
            f"checkpoint {checkpoint.path!r} has weights but no optimiser state: use load_weights"
        )
    data = blobs.read(f"{checkpoint.path}/{file}")
    if data is None:
        raise CorruptCheckpoint(f"{checkpoint.path}/{file} is missing")
    if hashlib.sha256(data).hexdigest() != manifest["files"][file]:
        raise CorruptCheckpoint(
            f"{checkpoint.path}/{file} does not have the digest that {MANIFEST} gives"
        )
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def list_checkpoints(blobs: BlobStore, prefix: str) -> Sequence[Checkpoint]:
    """List the checkpoints whose path begins with a prefix."""
    suffix = f"/{MANIFEST}"
    paths = [name.removesuffix(suffix) for name in blobs.list(prefix) if name.endswith(suffix)]
    return [_checkpoint(path, _manifest(blobs, path)) for path in paths]


def delete_checkpoint(blobs: BlobStore, checkpoint: Checkpoint) -> None:
    """Delete the manifest first, so that a half-deleted checkpoint counts as none."""
    blobs.delete(f"{checkpoint.path}/{MANIFEST}")
    for name in blobs.list(f"{checkpoint.path}/"):
        blobs.delete(name)


def _manifest(blobs: BlobStore, path: str) -> Mapping[str, Any]:
    data = blobs.read(f"{path}/{MANIFEST}")
    if data is None:
        raise CorruptCheckpoint(f"{path}/{MANIFEST} is missing")
    try:
        manifest: Mapping[str, Any] = read_json(data)
        if manifest["sha256"] == _digest(manifest):
            return manifest
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpoint(
            f"{path}/{MANIFEST} is truncated or overwritten: {error}"
        ) from error
    raise CorruptCheckpoint(f"{path}/{MANIFEST} does not match the digest that it contains")


def _digest(manifest: Mapping[str, Any]) -> str:
    content = {key: manifest[key] for key in ("step", "kind", "files")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checkpoint(path: str, manifest: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(path, manifest["step"], manifest["kind"], manifest["sha256"])


def _packed(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **dict[str, Any](arrays))
    return buffer.getvalue()

"""An index of the checkpoints on a server: one blob per checkpoint, with its path there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from kitchen.errors import ConfigError, CorruptCheckpoint
from kitchen.ports.blobs import BlobStore
from kitchen.safe_text import read_json
from kitchen.types import Checkpoint

FILE = "tinker.json"


class CheckpointIndex:
    """Maps our checkpoint names to paths on the server; stored beside the record of the run."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def check_free(self, name: str) -> None:
        """Raise ConfigError if the name is in use."""
        if self._blobs.read(f"{name}/{FILE}") is not None:
            raise ConfigError(
                f"checkpoint {name!r} exists already; choose another name, or delete it first"
            )

    def add(self, name: str, path: str, *, step: int, kind: Any) -> Checkpoint:
        """Record the path of a checkpoint on the server."""
        content = {"path": path, "step": step, "kind": kind}
        digest = _digest(content)
        entry = json.dumps({**content, "sha256": digest}, indent=2)
        self._blobs.write(f"{name}/{FILE}", entry.encode())
        return Checkpoint(name, step, kind, digest)

    def path(self, checkpoint: Checkpoint) -> str:
        """Return its path on the server.

        Raises CorruptCheckpoint for an entry that is missing, damaged, or not the one saved.
        """
        content = self._read(checkpoint.path)
        if checkpoint.sha256 not in ("", content["sha256"]):
            raise CorruptCheckpoint(
                f"{checkpoint.path}/{FILE}: it is not the checkpoint that was saved"
            )
        return str(content["path"])

    def all(self, prefix: str) -> Sequence[Checkpoint]:
        suffix = f"/{FILE}"
        blobs = [blob for blob in self._blobs.list(prefix) if blob.endswith(suffix)]
        return [self._checkpoint(blob.removesuffix(suffix)) for blob in blobs]

    def path_of(self, name: str) -> str | None:
        """Return the path of a name, or None if it is not in use; raises CorruptCheckpoint."""
        if self._blobs.read(f"{name}/{FILE}") is None:
            return None
        return str(self._read(name)["path"])

    def remove(self, name: str) -> None:
        self._blobs.delete(f"{name}/{FILE}")

    def _checkpoint(self, name: str) -> Checkpoint:
        content = self._read(name)
        return Checkpoint(name, content["step"], content["kind"], content["sha256"])

    def _read(self, name: str) -> dict[str, Any]:
        data = self._blobs.read(f"{name}/{FILE}")
        if data is None:
            raise CorruptCheckpoint(f"{name}/{FILE} is missing")
        try:
            content: dict[str, Any] = read_json(data)
            digest = _digest({key: content[key] for key in ("path", "step", "kind")})
            if content["sha256"] == digest:
                return content
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(
                f"{name}/{FILE} is truncated or overwritten: {error}"
            ) from error
        raise CorruptCheckpoint(f"{name}/{FILE} does not match the digest that it contains")


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

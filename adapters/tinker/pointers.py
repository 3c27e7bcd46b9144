"""Checkpoints on a server, by names of ours: a blob each that says where it lies there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from kitchen.errors import ConfigError, CorruptCheckpoint
from kitchen.ports.blobs import BlobStore
from kitchen.types import Checkpoint

FILE = "tinker.json"


class Pointers:
    """Kept in the blob store beside the record of the run."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def check_free(self, name: str) -> None:
        """Raises ConfigError for a name in use."""
        if self._blobs.read(f"{name}/{FILE}") is not None:
            raise ConfigError(
                f"checkpoint {name!r} exists already; choose another name, or delete it first"
            )

    def put(self, name: str, path: str, *, step: int, kind: Any) -> Checkpoint:
        """`path` is what the server calls it."""
        content = {"path": path, "step": step, "kind": kind}
        digest = _digest(content)
        self._blobs.write(
            f"{name}/{FILE}", json.dumps({**content, "sha256": digest}, indent=2).encode()
        )
        return Checkpoint(name, step, kind, digest)

    def path(self, checkpoint: Checkpoint) -> str:
        """Raises CorruptCheckpoint for one that is gone, damaged, or another than was saved."""
        content = self._read(checkpoint.path)
        if checkpoint.sha256 not in ("", content["sha256"]):
            raise CorruptCheckpoint(
                f"{checkpoint.path}/{FILE}: it is not the checkpoint that was saved"
            )
        return str(content["path"])

    def all(self, prefix: str) -> Sequence[Checkpoint]:
        names = [
            name.removesuffix(f"/{FILE}")
            for name in self._blobs.list(prefix)
            if name.endswith(f"/{FILE}")
        ]
        found = [(name, self._read(name)) for name in names]
        return [
            Checkpoint(name, content["step"], content["kind"], content["sha256"])
            for name, content in found
        ]

    def path_of(self, name: str) -> str | None:
        """None for a name that is not in use; raises CorruptCheckpoint."""
        return None if self._blobs.read(f"{name}/{FILE}") is None else str(self._read(name)["path"])

    def forget(self, name: str) -> None:
        self._blobs.delete(f"{name}/{FILE}")

    def _read(self, name: str) -> dict[str, Any]:
        data = self._blobs.read(f"{name}/{FILE}")
        if data is None:
            raise CorruptCheckpoint(f"{name}/{FILE} is missing")
        try:
            found: dict[str, Any] = json.loads(data)
            if found["sha256"] == _digest({key: found[key] for key in ("path", "step", "kind")}):
                return found
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(
                f"{name}/{FILE} is cut short or overwritten: {error}"
            ) from error
        raise CorruptCheckpoint(f"{name}/{FILE} does not have the digest that it gives")


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

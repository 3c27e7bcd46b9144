"""JSON objects stored with their digest, so that damage is found when they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kitchen.errors import ConfigError
from kitchen.ports.blobs import BlobStore, seal, unseal
from kitchen.safe_text import read_json


def write_sealed(blobs: BlobStore, name: str, content: Mapping[str, Any]) -> None:
    """Write a JSON object with its digest."""
    blobs.write(name, seal(json.dumps(content)))


def read_sealed(blobs: BlobStore, name: str) -> dict[str, Any]:
    """Read a JSON object; raises ConfigError if it is missing or damaged."""
    try:
        return dict(read_json(unseal(blobs.read(name) or b"")))
    except ValueError as error:
        raise ConfigError(
            f"{blobs.locate(name)} is damaged ({error}); restore it from a copy"
        ) from error

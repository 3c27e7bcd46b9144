"""Bigram weights in a folder like that of a real adapter or model, read and written with numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from adapters.fake.bigram import Table
from adapters.fake.checkpoints import Arrays
from adapters.folders import read_config
from kitchen.backend.atomic_folder import atomic_folder
from kitchen.errors import BackendError

# configuration file to weights file, of a model and of an adapter
_MODEL = ("config.json", "model.safetensors")
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_TYPE = "bigram"


def write_folder(arrays: Arrays, folder: Path, *, merged: bool) -> None:
    """Write an adapter (`base`, `a` and `b`) or a merged model (the logits of both).

    Raises ConfigError for a folder in use.
    """
    config, file = _MODEL if merged else _ADAPTER
    if merged:
        exported: Arrays = {"logits": logits_of(arrays)}
    else:
        exported = {name: arrays[name] for name in ("base", "a", "b")}
    with atomic_folder(folder) as part:
        (part / config).write_text(json.dumps({"model_type": _TYPE}) + "\n")
        (part / file).write_bytes(_to_safetensors(exported))


def read_folder(folder: Path) -> Arrays | None:
    """Return the weights in a folder that was written here; None for any other.

    Raises BackendError, which names the file, for a damaged one.
    """
    for config, file in (_MODEL, _ADAPTER):
        if not (folder / config).is_file():
            continue
        if read_config(folder, config, "weights").get("model_type") != _TYPE:
            continue
        try:
            return _from_safetensors((folder / file).read_bytes())
        except (OSError, ValueError, KeyError) as error:
            raise BackendError(
                f"{folder / file} cannot be read ({error}); export the weights again"
            ) from error
    return None


def logits_of(arrays: Arrays) -> Table:
    if "logits" in arrays:
        return np.asarray(arrays["logits"])
    return np.asarray(arrays["base"] + arrays["a"] * arrays["b"])


def _to_safetensors(arrays: Arrays) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    body = b""
    for name, array in arrays.items():
        data = np.asarray(array, np.float64).tobytes()
        header[name] = {
            "dtype": "F64",
            "shape": array.shape,
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + body


def _from_safetensors(data: bytes) -> Arrays:
    body_start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:body_start])
    body = data[body_start:]
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])]).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }

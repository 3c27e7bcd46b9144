"""Bigram weights in a folder like that of a real adapter or model, written and read with numpy
alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from adapters.fake.bigram import Table
from adapters.fake.checkpoints import Arrays
from kitchen.backend.atomic_folder import appearing

_CONFIGS = {"config.json": "model.safetensors", "adapter_config.json": "adapter_model.safetensors"}
_TYPE = "bigram"


def write_folder(arrays: Arrays, folder: Path, *, merged: bool) -> None:
    """`base`, `a` and `b`, or the logits that they come to; raises ConfigError for a folder in use."""
    config, file = list(_CONFIGS.items())[0 if merged else 1]
    kept = (
        {"logits": logits(arrays)}
        if merged
        else {name: arrays[name] for name in ("base", "a", "b")}
    )
    with appearing(folder) as part:
        (part / config).write_text(json.dumps({"model_type": _TYPE}) + "\n")
        (part / file).write_bytes(_safetensors(kept))


def read_folder(folder: Path) -> Table | None:
    """The logits of a folder that was written here; None for any other."""
    for config, file in _CONFIGS.items():
        path = folder / config
        if path.is_file() and json.loads(path.read_text()).get("model_type") == _TYPE:
            return logits(_arrays((folder / file).read_bytes()))
    return None


def logits(arrays: Arrays) -> Table:
    return np.asarray(
        arrays["logits"] if "logits" in arrays else arrays["base"] + arrays["a"] * arrays["b"]
    )


def _safetensors(arrays: Arrays) -> bytes:
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


def _arrays(data: bytes) -> Arrays:
    start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:start])
    return {
        name: np.frombuffer(data[start:][slice(*about["data_offsets"])]).reshape(about["shape"])
        for name, about in header.items()
        if name != "__metadata__"
    }

"""What a folder of weights says of itself, read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from kitchen.artifacts.weights import parse_weights_name
from kitchen.errors import BackendError
from kitchen.ports.hub import HubClient

CONFIG = "adapter_config.json"
TOKENIZER = (
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template*",
    "generation_config.json",
)


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def base_name(folder: Path) -> str:
    """The model that an adapter's folder belongs to, as a hub knows it; empty where it does not
    say.
    """
    config = read_config(folder)
    name, revision = str(config.get("base_model_name_or_path") or ""), config.get("revision")
    if name and Path(name).is_dir():  # as PEFT reads it: a folder that is there comes before a name
        return f"path:{name}"
    return f"{name}@{revision}" if name and revision and ":" not in name else name


def read_config(folder: Path, file: str = CONFIG, what: str = "adapter") -> dict[str, Any]:
    """Raises BackendError that names the file where it cannot be read."""
    try:
        config = json.loads((folder / file).read_bytes())
    except ValueError as error:
        raise BackendError(
            f"{folder / file} is not JSON ({error}); fetch or export the {what} again"
        ) from error
    if not isinstance(config, dict):
        raise BackendError(f"{folder / file} is no JSON object; fetch or export the {what} again")
    return config


def model_config(folder: Path) -> Mapping[str, Any]:
    """Of a whole model, or of the language model in one that also sees; empty where its folder does
    not say.
    """
    if not (folder / "config.json").is_file():
        return {}
    config = read_config(folder, "config.json", "model")
    return {**(config.get("text_config") or {}), **config}


def hidden_size(folder: Path) -> int | None:
    """How wide the layers of a model are; None where its folder does not say."""
    size = model_config(folder).get("hidden_size")
    return size if isinstance(size, int) else None


def model_size(hub: HubClient, model: str) -> int | None:
    """How wide the layers of a model are, of an adapter's folder those of its base; None where it
    does not say.
    """
    return hidden_size(whole_model(hub, model))


def model_sha256(hub: HubClient, model: str) -> str:
    """Of the weights of a model; of an adapter's folder of its own, of how they are used, and of
    its base's weights.
    """
    own, folder = hub.sha256(model), hub.fetch(model)
    if not is_adapter(folder):
        return own
    used = {
        key: value for key, value in read_config(folder).items() if key != "base_model_name_or_path"
    }
    base = hub.sha256(demand_base(model, folder))
    return sha256(f"{own} {base} {json.dumps(used, sort_keys=True)}".encode()).hexdigest()


def whole_model(hub: HubClient, model: str) -> Path:
    """Where a model is, of an adapter's folder its base; all of it is fetched. Raises BackendError."""
    folder = hub.fetch(model)
    return hub.fetch(demand_base(model, folder)) if is_adapter(folder) else folder


def demand_base(name: str, folder: Path) -> str:
    """Raises BackendError where an adapter's folder does not say which model it belongs to."""
    if not (base := base_name(folder)):
        raise BackendError(
            f"{name}: {CONFIG} does not say which base model it belongs to "
            "(base_model_name_or_path)"
        )
    return base


def peft_base(model: str, folder: Path) -> dict[str, Any]:
    """What PEFT opens a model by: the name and revision that a hub has it under, or else the folder
    that it is in.
    """
    name = parse_weights_name(model)
    if name.kind == "hub":
        return {"base_model_name_or_path": name.name, "revision": name.at or None}
    return {"base_model_name_or_path": str(folder.absolute()), "revision": None}


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of its tokenizer and of how it answers; empty where it has no tokenizer."""
    found = sorted(
        {path for pattern in TOKENIZER for path in folder.glob(pattern) if path.is_file()}
    )
    return (
        found
        if any(path.name.startswith(("tokenizer", "vocab", "spiece")) for path in found)
        else []
    )

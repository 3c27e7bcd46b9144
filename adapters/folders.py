"""Facts about a folder of weights, read without torch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from kitchen.artifacts.weights import parse_weights_name
from kitchen.errors import BackendError
from kitchen.ports.hub import HubClient
from kitchen.safe_text import read_json

CONFIG = "adapter_config.json"
# files with a vocabulary, as the tokenizers of transformers name them, and their configuration
_VOCABULARIES = (
    "tokenizer*.json",
    "tokenizer.model*",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "*.tiktoken",
    "*tekken*.json",
)
TOKENIZER = (
    *_VOCABULARIES,
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "bpe.codes",
    "emoji.json",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "generation_config.json",
)


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains a PEFT adapter rather than a whole model."""
    return (folder / CONFIG).is_file()


def base_model_name(folder: Path) -> str:
    """Return the base model that an adapter's folder names, as a hub knows it; empty if none.

    Exports name a folder without its place (`path:NAME`): it is looked for beside the adapter's.
    """
    config = read_config(folder)
    name, revision = str(config.get("base_model_name_or_path") or ""), config.get("revision")
    if name and os.path.isdir(name):  # as in PEFT, an existing folder comes before a name
        return f"path:{name}"
    beside = folder.absolute().parent / name.removeprefix("path:")
    if name.startswith("path:") and beside.is_dir():
        return f"path:{beside}"
    return f"{name}@{revision}" if name and revision and ":" not in name else name


def require_base_model(name: str, folder: Path) -> str:
    """Return the base model that an adapter's folder names; raises BackendError if none."""
    base = base_model_name(folder)
    if not base:
        raise BackendError(
            f"{name}: {CONFIG} does not name its base model (base_model_name_or_path)"
        )
    return base


def read_config(folder: Path, file: str = CONFIG, what: str = "adapter") -> dict[str, Any]:
    """Read a JSON object; raises BackendError, which names the file, if it cannot be read."""
    try:
        config = read_json((folder / file).read_bytes())
    except ValueError as error:
        raise BackendError(
            f"{folder / file} is not JSON ({error}); fetch or export the {what} again"
        ) from error
    if not isinstance(config, dict):
        raise BackendError(
            f"{folder / file} is not a JSON object; fetch or export the {what} again"
        )
    return config


def why_not_opened(folder: Path, error: Exception) -> str:
    """Explain why transformers could not open a folder: custom code, a damaged file or its error.

    The error of a library rarely names the file that it could not read.
    """
    for file in ("config.json", "tokenizer_config.json"):
        path = folder / file
        if path.is_file() and read_config(folder, file, "model").get("auto_map"):
            return (
                f"{path} names custom code (auto_map), which is never run, and this version of "
                "transformers does not know the architecture itself; use a model that it knows"
            )
    for path in sorted(folder.glob("*.json")):
        try:
            read_json(path.read_bytes())
        except ValueError as not_json:
            return f"{path} is not JSON ({not_json}); fetch or copy the model again"
    for path in [*folder.glob("*.safetensors"), *folder.glob("tokenizer.json")]:
        if damage := _damage(path):
            return f"{path} is damaged ({damage}); fetch or copy the model again"
    if "ignore_mismatched_sizes" in str(error):  # transformers only logs which weights
        return (
            f"its weights do not have the shapes that {folder / 'config.json'} gives, such as "
            "vocab_size rows of embeddings; correct the file, or fetch or export the model again"
        )
    return f"{folder}: {type(error).__name__}: {error}"


def _damage(path: Path) -> str:
    """Return why a file of weights or of a tokenizer cannot be read; empty if it can."""
    import safetensors
    import tokenizers

    try:
        if path.suffix == ".safetensors":
            with safetensors.safe_open(path, "numpy"):
                pass
        else:
            tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 tokenizers raises Exception itself
        return str(error)
    return ""


def model_config(folder: Path) -> Mapping[str, Any]:
    """Return the configuration of a model, with `text_config` merged in for a multimodal one.

    Empty if the folder has none.
    """
    if not (folder / "config.json").is_file():
        return {}
    config = read_config(folder, "config.json", "model")
    return {**(config.get("text_config") or {}), **config}


def hidden_size(hub: HubClient, model: str) -> int | None:
    """Return the hidden size of a model or of an adapter's base; None if it is not configured."""
    size = model_config(model_folder(hub, model)).get("hidden_size")
    return size if isinstance(size, int) else None


def model_sha256(hub: HubClient, model: str) -> str:
    """Return the digest of a model's weights.

    For an adapter, it covers its weights, its settings and the weights of its base.
    """
    digest = hub.sha256(model)
    folder = hub.fetch(model)
    if not is_adapter(folder):
        return digest
    settings = read_config(folder)
    settings.pop("base_model_name_or_path", None)
    base_digest = hub.sha256(require_base_model(model, folder))
    applied = json.dumps(settings, sort_keys=True)
    return sha256(f"{digest} {base_digest} {applied}".encode()).hexdigest()


def base_of(hub: HubClient, model: str) -> str:
    """Return the name of the whole model: that of an adapter's base, or else `model` itself."""
    folder = hub.fetch(model)
    return require_base_model(model, folder) if is_adapter(folder) else model


def model_folder(hub: HubClient, model: str) -> Path:
    """Fetch a model, or the base of an adapter, and return its folder; raises BackendError."""
    return hub.fetch(base_of(hub, model))


def peft_base_fields(model: str, folder: Path) -> dict[str, Any]:
    """Return the fields of adapter_config.json by which PEFT finds a base model.

    They hold its name and revision on the hub, or else its folder.
    """
    name = parse_weights_name(model)
    if name.kind == "hub":
        return {"base_model_name_or_path": name.name, "revision": name.at or None}
    return {"base_model_name_or_path": str(folder.absolute()), "revision": None}


def tokenizer_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder's tokenizer and generation settings, by name in the folder.

    Empty if the folder has no tokenizer.
    """
    matches = chain.from_iterable(folder.glob(pattern) for pattern in TOKENIZER)
    files = {path.relative_to(folder).as_posix(): path for path in matches if path.is_file()}
    has_tokenizer = any(is_tokenizer_file(name, _VOCABULARIES) for name in files)
    return dict(sorted(files.items())) if has_tokenizer else {}


def copy_files(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files into a folder, under names that may have one folder in them."""
    for name, path in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, folder / name)


def is_tokenizer_file(name: str, patterns: Sequence[str] = TOKENIZER) -> bool:
    """Return whether a file's name in its folder is one of a tokenizer."""
    return any(
        name.count("/") == pattern.count("/") and fnmatchcase(name, pattern) for pattern in patterns
    )

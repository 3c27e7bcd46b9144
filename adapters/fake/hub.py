"""A model hub in memory; fetched models are written to a temporary folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from kitchen.backend.edited_files import is_protected, warn_of_kept, was_edited
from kitchen.backend.folder_files import files_inside
from kitchen.errors import BackendError, did_you_mean
from kitchen.ports import ModelInfo

Files = Mapping[str, bytes]  # relative path to content


class FakeHub:
    """Models by name, as {name: {path: content}}; fetched folders are deleted with the object."""

    def __init__(self, models: Mapping[str, Files] | None = None) -> None:
        self._models = dict(_built_in() if models is None else models)
        self._folders = TemporaryDirectory(prefix="kitchen-fake-hub-")

    def fetch(self, model: str) -> Path:
        """Return a folder with the files of a model; raises BackendError for an unknown name."""
        files = self._files(model)
        folder = Path(self._folders.name, hashlib.sha256(model.encode()).hexdigest()[:16])
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        return folder

    def file(self, model: str, path: str) -> Path:
        """Return one file; raises BackendError for an unknown name or path."""
        if path not in self._files(model):
            raise BackendError(
                f"model {model!r} has no file {path!r}; {did_you_mean(path, self._files(model))}"
            )
        return self.fetch(model) / path

    def find(self, model: str) -> None:
        """Raise BackendError for an unknown name."""
        self._files(model)

    def info(self, model: str) -> ModelInfo:
        """Return name and size; raises BackendError for an unknown name."""
        return ModelInfo(model, size=sum(len(content) for content in self._files(model).values()))

    def sha256(self, model: str) -> str:
        """Return the digest of the safetensors files, in order of their names."""
        digest = hashlib.sha256()
        for path, content in sorted(self._files(model).items()):
            if path.endswith(".safetensors"):
                digest.update(content)
        return digest.hexdigest()

    def files(self, model: str) -> Sequence[str]:
        """Return sorted paths; raises BackendError for an unknown name."""
        return sorted(self._files(model))

    def publish(self, model: str, folder: Path, *, message: str, replace_card: bool = False) -> str:
        """Store the files of a folder under a name; raises BackendError if there are none."""
        paths = files_inside(folder)
        if not paths:
            raise BackendError(
                f"{folder} holds no files, so there is nothing to publish as {model!r}"
            )
        new = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        kept = {}
        for path, content in self._models.get(model, {}).items():
            if is_protected(path) and was_edited(path, content, new.get(path, b"")):
                kept[path] = content
        if replace_card:
            kept = {path: content for path, content in kept.items() if path not in new}
        self._models[model] = {**new, **kept}
        warn_of_kept(model, kept.keys() & new.keys())
        return f"memory://{model}"

    def _files(self, model: str) -> Files:
        if model not in self._models:
            raise BackendError(
                f"model {model!r} is unknown to the fake hub; {did_you_mean(model, self._models)}"
            )
        return self._models[model]


def _built_in() -> Mapping[str, Files]:
    """Return one model whose files can be opened, but hold no weights."""
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    return {
        "fake/bigram": {
            "config.json": json.dumps({"model_type": "bigram", "vocab_size": 262}).encode(),
            "model.safetensors": len(header).to_bytes(8, "little") + header,
            "tokenizer_config.json": json.dumps({"tokenizer_class": "Bytes"}).encode(),
        }
    }

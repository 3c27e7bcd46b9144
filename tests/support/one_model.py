"""A hub with one model, for tests."""

from __future__ import annotations

from pathlib import Path

from kitchen.errors import BackendError
from kitchen.ports import ModelInfo


class OneModel:
    """A hub that has one model, under any name but "nothing", and folders as path:DIR."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, model: str) -> Path:
        if model == "nothing":
            raise BackendError("there is no model 'nothing'")
        return Path(model.removeprefix("path:")) if model.startswith("path:") else self._folder

    def info(self, model: str) -> ModelInfo:
        return ModelInfo(model, origin=f"Weights of {model}")

    def find(self, model: str) -> None:
        self.fetch(model)

    def sha256(self, model: str) -> str:
        return "5" * 64

    def files(self, model: str) -> list[str]:
        return sorted(path.name for path in self.fetch(model).iterdir())

    def publish(self, model: str, folder: Path, *, message: str, replace_card: bool = False) -> str:
        raise BackendError("this hub publishes nothing")

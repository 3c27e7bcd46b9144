"""The port for model hubs: fetch models, and publish them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a model that are known without its weights."""

    name: str
    # the commit that the name stands for; None where there is one version only
    revision: str | None = None
    size: int | None = None  # bytes of its files
    license: str = ""
    origin: str = ""  # of weights that are not those of the model's name: "... dequantised"


class HubClient(Protocol):
    """A source of models by name, and a place to publish them.

    Every method that takes a model raises BackendError for an unknown one.
    """

    def fetch(self, model: str) -> Path:
        """Return a folder with configuration, weights as safetensors, and tokenizer."""
        ...

    def file(self, model: str, path: str) -> Path:
        """Return one file of a model by its path; the others need not be fetched."""
        ...

    def find(self, model: str) -> None:
        """Raise the error of `fetch` for a name that is unknown or not installed.

        Cheap, and without a network.
        """
        ...

    def info(self, model: str) -> ModelInfo:
        """Return the facts about a model that need no weights."""
        ...

    def sha256(self, model: str) -> str:
        """Return the SHA-256 of the weights of a model, in hex."""
        ...

    def files(self, model: str) -> Sequence[str]:
        """Return the paths of the files of a model, sorted."""
        ...

    def publish(self, model: str, folder: Path, *, message: str, replace_card: bool = False) -> str:
        """Upload a folder and return the place at which a person finds it.

        Repeating an upload changes nothing, and an incomplete one is never visible. A model card
        or licence that somebody edited is kept, with a warning, unless `replace_card` is set.
        """
        ...

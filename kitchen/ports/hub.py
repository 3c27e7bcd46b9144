"""Where models come from and go to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model without its weights."""

    name: str
    # the commit that the name stands for; None where there is one version only
    revision: str | None = None
    size: int | None = None  # bytes of its files
    license: str = ""


class HubClient(Protocol):
    """Model names to folders, and back.

    Every verb that is given a model raises BackendError for an unknown one.
    """

    def fetch(self, model: str) -> Path:
        """A folder with configuration, weights as safetensors, and tokenizer."""
        ...

    def file(self, model: str, path: str) -> Path:
        """One file of a model, by its path there; the others need not come along."""
        ...

    def find(self, model: str) -> None:
        """Raise what `fetch` would raise for a name that is unknown or not installed; cheap, and
        without a network.
        """
        ...

    def info(self, model: str) -> ModelInfo: ...
    def sha256(self, model: str) -> str:
        """Digest of the weights of a model, in hex."""
        ...

    def files(self, model: str) -> Sequence[str]:
        """The paths of its files, sorted."""
        ...

    def publish(self, model: str, folder: Path, *, message: str) -> str:
        """Upload a folder; returns where a person finds it. Done twice, it is the same; done half,
        it is not seen.
        """
        ...

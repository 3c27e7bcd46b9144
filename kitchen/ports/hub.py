"""Where models come from and go to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class HubClient(Protocol):
    """Model names to folders, and back."""

    def fetch(self, model: str) -> Path:
        """A folder with configuration, weights as safetensors, and tokenizer; raises BackendError for unknown names."""
        ...

    def find(self, model: str) -> None:
        """Raise what `fetch` would raise for a name that is unknown or not installed; cheap, and without a network."""
        ...

    def sha256(self, model: str) -> str:
        """Digest of the weights of a model, in hex."""
        ...

    def files(self, model: str) -> Sequence[str]: ...
    def publish(self, model: str, folder: Path, *, message: str) -> str:
        """Upload a folder; returns where a person finds it."""
        ...

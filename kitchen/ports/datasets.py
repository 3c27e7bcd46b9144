"""Where rows come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Row = Mapping[str, Any]


class Dataset(Protocol):
    """Rows in a fixed order."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hex."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Row:
        """The row; raises DataError that names file and line where it cannot be read, IndexError past the end."""
        ...

    def where(self, index: int) -> str:
        """Where a person finds the row: "chats.jsonl:12"."""
        ...


class DatasetStore(Protocol):
    """Names to data sets."""

    def splits(self, name: str) -> Sequence[str]:
        """The splits of a data set, "train" first; raises DataError with a did-you-mean for an unknown name."""
        ...

    def load(self, name: str, *, split: str = "train", revision: str | None = None) -> Dataset: ...

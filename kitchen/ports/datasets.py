"""Where rows come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Row = Mapping[str, Any]


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before it is read."""

    name: str
    # split to rows, "train" first; None: not known before it is read
    splits: Mapping[str, int | None]
    # the commit that the name stands for; None where there is one version only
    revision: str | None = None
    size: int | None = None  # bytes of its files
    license: str = ""
    about: str = ""  # a sentence or two


class Dataset(Protocol):
    """Rows in a fixed order."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hex."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Row:
        """The row; raises DataError that names file and line where it cannot be read, IndexError
        past the end.
        """
        ...

    def where(self, index: int) -> str:
        """Where a person finds the row: "chats.jsonl:12"."""
        ...


@dataclass(frozen=True)
class StreamedRow:
    """A row as it comes by, and where a person finds it."""

    where: str  # "chats.jsonl:12"
    row: Row = field(repr=False)


class DatasetStore(Protocol):
    """Names to data sets.

    Every verb raises DataError with a did-you-mean for an unknown name, split or revision, and
    BackendError where the place that has it cannot be reached.
    """

    def splits(self, name: str, *, revision: str | None = None) -> Sequence[str]:
        """The splits of a data set, "train" first."""
        ...

    def info(self, name: str, *, revision: str | None = None) -> DatasetInfo:
        """What is known of it without reading its rows."""
        ...

    def load(self, name: str, *, split: str = "train", revision: str | None = None) -> Dataset:
        """All rows, each to be had by its number; memory does not grow with their size."""
        ...

    def stream(
        self, name: str, *, split: str = "train", revision: str | None = None
    ) -> Iterator[StreamedRow]:
        """The rows in their order, one after the other: nothing is kept, and nothing is read before
        it is wanted.
        """
        ...

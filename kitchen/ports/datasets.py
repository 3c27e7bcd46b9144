"""The port for data sets: rows by split, loaded or streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kitchen.errors import DataError

Row = Mapping[str, Any]
OnBadRow = Callable[[DataError], None]  # takes the error of a row that is left out


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set that are known before it is read."""

    name: str
    # number of rows by split, "train" first; None: not known before it is read
    splits: Mapping[str, int | None]
    # the commit that the name stands for; None where there is one version only
    revision: str | None = None
    size: int | None = None  # bytes of its files
    license: str = ""
    about: str = ""  # a sentence or two
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of each split, if there are
    not_read: Sequence[str] = ()  # other files of the data set, which are not taken for data


class Dataset(Protocol):
    """Rows in a fixed order."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hex."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Row:
        """Return a row.

        Raises DataError that names file and line if it cannot be read, IndexError past the end.
        """
        ...

    def where(self, index: int) -> str:
        """Return the place of a row for people: "chats.jsonl:12"."""
        ...


@dataclass(frozen=True)
class StreamedRow:
    """A row of a stream, with its place."""

    where: str  # "chats.jsonl:12"
    row: Row = field(repr=False)


class DatasetStore(Protocol):
    """A source of data sets by name.

    Every method raises DataError with a did-you-mean for an unknown name, split or revision, and
    BackendError if the source cannot be reached.
    """

    def splits(self, name: str, *, revision: str | None = None) -> Sequence[str]:
        """Return the splits of a data set, "train" first."""
        ...

    def info(self, name: str, *, revision: str | None = None) -> DatasetInfo:
        """Return the facts about a data set that need no reading of its rows."""
        ...

    def load(
        self,
        name: str,
        *,
        split: str = "train",
        revision: str | None = None,
        on_bad_row: OnBadRow | None = None,
    ) -> Dataset:
        """Return all rows by index; memory does not grow with their size.

        With `on_bad_row`, rows that cannot be read are given to it and left out, where possible.
        """
        ...

    def stream(
        self,
        name: str,
        *,
        split: str = "train",
        revision: str | None = None,
        on_bad_row: OnBadRow | None = None,
    ) -> Iterator[StreamedRow]:
        """Yield the rows in order; each is read when it is needed, and none is retained."""
        ...

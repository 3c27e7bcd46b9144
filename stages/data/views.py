"""Views over a data set: parts of it, in another order or under other names, without a copy of its
rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports.datasets import Dataset, Row

_Numbers = NDArray[np.integer[Any]]
_AT_ONCE = 65_536  # numbers that are digested together


def select(data: Dataset, indices: Sequence[int] | _Numbers) -> Dataset:
    """The rows of these numbers, in this order; one may come twice.

    Raises IndexError for one that is not there, TypeError for what is no whole number, such as a
    mask.
    """
    if (given := np.asarray(indices)).size and given.dtype.kind not in "iu":
        raise TypeError(
            f"rows are chosen by their numbers, not by {given.dtype}; of a mask take "
            "np.flatnonzero(mask)"
        )
    numbers = given.astype(np.int64)
    if wrong := numbers[(numbers < 0) | (numbers >= len(data))][:1].tolist():
        raise IndexError(f"row {wrong[0]} of {len(data)}")
    return _Chosen(data, _compact(numbers, len(data)))


def take(data: Dataset, count: int) -> Dataset:
    """The first `count` rows, or all where there are no more."""
    return _Chosen(data, range(min(_counted("take", count), len(data))))


def skip(data: Dataset, count: int) -> Dataset:
    """What comes after the first `count` rows."""
    return _Chosen(data, range(min(_counted("skip", count), len(data)), len(data)))


def shuffle(data: Dataset, seed: int) -> Dataset:
    """All rows, in an order that the seed tells."""
    return _Chosen(data, _shuffled(len(data), seed))


def split(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """The rest, and a share of the rows chosen by the seed; both in the order of the data.

    Raises DataError where one of the two would be empty.
    """
    rows = len(data)
    count = round(rows * share) if 0 <= share <= 1 else -1
    if not 0 < count < rows:
        raise DataError(
            f"a share of {share} of {rows} rows cannot be split off: both parts need at least one "
            "row; "
            "take a share between 0 and 1, or more rows"
        )
    held = np.zeros(rows, dtype=bool)
    held[_shuffled(rows, seed)[:count]] = True
    return _Chosen(data, _compact(np.flatnonzero(~held), rows)), _Chosen(
        data, _compact(np.flatnonzero(held), rows)
    )


def batches(data: Dataset, size: int) -> Iterator[list[Row]]:
    """Rows `size` at a time, in order; the last may be fewer."""
    if size < 1:
        raise ConfigError(f"batches of {size} rows: a batch has at least one")
    return (
        [data[index] for index in range(start, min(start + size, len(data)))]
        for start in range(0, len(data), size)
    )


def rename(data: Dataset, columns: Mapping[str, str]) -> Dataset:
    """The rows under other names, `{"question": "prompt"}`: new name by old. The first row is tried
    at once.

    Raises DataError, with the place, for a row without such a column, or with two under one name.
    """
    view = _Renamed(data, dict(columns))
    if len(data):
        view[0]
    return view


def rename_row(row: Row, columns: Mapping[str, str], where: str) -> Row:
    """One row under other names: what `renamed` does, for rows that are streamed."""
    for old in columns:
        if old not in row:
            raise DataError(
                f"{where}: there is no column {old!r} to rename; {did_you_mean(old, row)}; one "
                "that only "
                "some rows have is to be renamed in the data"
            )
    fresh: dict[str, Any] = {}
    for old, value in row.items():
        name = columns.get(old, old)
        if name in fresh:
            raise DataError(
                f"{where}: two columns would be called {name!r}; rename the other one too"
            )
        fresh[name] = value
    return fresh


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Some rows of a data set, by their numbers there."""

    data: Dataset
    indices: range | _Numbers = field(repr=False)  # (rows,)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.data.fingerprint} rows ".encode())
        for start in range(0, len(self), _AT_ONCE):
            digest.update(np.asarray(self.indices[start : start + _AT_ONCE], dtype="<i8").tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int, /) -> Row:
        return self.data[self._there(index)]

    def where(self, index: int) -> str:
        return self.data.where(self._there(index))

    def _there(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return int(self.indices[index])


@dataclass(frozen=True, eq=False)
class _Renamed:
    """A data set of which columns have other names."""

    data: Dataset
    columns: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        done = json.dumps(self.columns, sort_keys=True)
        return hashlib.sha256(f"{self.data.fingerprint} renamed {done}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int, /) -> Row:
        return rename_row(self.data[index], self.columns, self.where(index))

    def where(self, index: int) -> str:
        return self.data.where(index)


def _shuffled(rows: int, seed: int) -> _Numbers:
    return np.random.default_rng(seed).permutation(_compact(np.arange(rows), rows))


def _compact(numbers: _Numbers, rows: int) -> _Numbers:
    """In as few bytes as row numbers need: a million of them in 4 MB."""
    return numbers.astype(np.min_scalar_type(rows))


def _counted(what: str, count: int) -> int:
    if count < 0:
        raise ConfigError(f"{what} {count} rows: a count is at least 0")
    return count

"""Views of a data set: a selection, order or renaming of its rows, without copying them."""

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
_DIGEST_CHUNK = 65_536  # indices that are hashed together


def select(data: Dataset, indices: Sequence[int] | _Numbers) -> Dataset:
    """Return the rows at `indices`, in that order; an index may occur twice.

    Raises IndexError for an index out of range, and TypeError for indices that are not
    whole numbers, such as a mask.
    """
    array = np.asarray(indices)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(
            f"rows are selected by index, not by {array.dtype}; convert a mask with "
            "np.flatnonzero(mask)"
        )
    numbers = array.astype(np.int64)
    out_of_range = numbers[(numbers < 0) | (numbers >= len(data))]
    if len(out_of_range):
        raise IndexError(f"row {out_of_range[0]} of {len(data)}")
    return _Selected(data, _compact(numbers, len(data)))


def take(data: Dataset, count: int) -> Dataset:
    """Return the first `count` rows, or all if there are fewer."""
    return _Selected(data, range(min(_checked_count("take", count), len(data))))


def skip(data: Dataset, count: int) -> Dataset:
    """Return the rows after the first `count`."""
    return _Selected(data, range(min(_checked_count("skip", count), len(data)), len(data)))


def shuffle(data: Dataset, seed: int) -> Dataset:
    """Return all rows in a seeded random order."""
    return _Selected(data, _permutation(len(data), seed))


def split(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split off a seeded random share of the rows: (the others, the share), in the data's order.

    Raises DataError if one of the two would be empty.
    """
    rows = len(data)
    count = round(rows * share) if 0 <= share <= 1 else -1
    if not 0 < count < rows:
        raise DataError(
            f"a share of {share} of {rows} rows cannot be split off: both parts need at least one "
            "row; choose a share between 0 and 1, or add rows"
        )
    in_share = np.zeros(rows, dtype=bool)
    in_share[_permutation(rows, seed)[:count]] = True
    others = _compact(np.flatnonzero(~in_share), rows)
    return _Selected(data, others), _Selected(data, _compact(np.flatnonzero(in_share), rows))


def batches(data: Dataset, size: int) -> Iterator[list[Row]]:
    """Yield the rows `size` at a time, in order; the last batch may be smaller."""
    if size < 1:
        raise ConfigError(f"batches of {size} rows: a batch has at least one")
    return (_rows(data, start, start + size) for start in range(0, len(data), size))


def _rows(data: Dataset, start: int, end: int) -> list[Row]:
    return [data[index] for index in range(start, min(end, len(data)))]


def rename(data: Dataset, columns: Mapping[str, str]) -> Dataset:
    """Rename columns, `{"question": "prompt"}` for old and new name; the first row is checked now.

    Raises DataError, with the place, for a row without such a column, or with a duplicate name.
    """
    view = _Renamed(data, dict(columns))
    if len(data):
        view[0]
    return view


def rename_row(row: Row, columns: Mapping[str, str], where: str) -> Row:
    """Rename the columns of one row, for rows that are streamed; raises DataError as `rename`."""
    for old in columns:
        if old not in row:
            raise DataError(
                f"{where}: there is no column {old!r} to rename; {did_you_mean(old, row)}; rename "
                "a column that only some rows have in the data itself"
            )
    renamed: dict[str, Any] = {}
    for old, value in row.items():
        name = columns.get(old, old)
        if name in renamed:
            raise DataError(
                f"{where}: two columns would be called {name!r}; rename the other one too"
            )
        renamed[name] = value
    return renamed


@dataclass(frozen=True, eq=False)
class _Selected:
    """Some rows of a data set, by their indices in it."""

    data: Dataset
    indices: range | _Numbers = field(repr=False)  # (rows,)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.data.fingerprint} rows ".encode())
        for start in range(0, len(self), _DIGEST_CHUNK):
            digest.update(
                np.asarray(self.indices[start : start + _DIGEST_CHUNK], dtype="<i8").tobytes()
            )
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int, /) -> Row:
        return self.data[self._index(index)]

    def where(self, index: int) -> str:
        return self.data.where(self._index(index))

    def _index(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return int(self.indices[index])


@dataclass(frozen=True, eq=False)
class _Renamed:
    """A data set with renamed columns."""

    data: Dataset
    columns: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        columns = json.dumps(self.columns, sort_keys=True)
        return hashlib.sha256(f"{self.data.fingerprint} renamed {columns}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int, /) -> Row:
        return rename_row(self.data[index], self.columns, self.where(index))

    def where(self, index: int) -> str:
        return self.data.where(index)


def _permutation(rows: int, seed: int) -> _Numbers:
    return np.random.default_rng(seed).permutation(_compact(np.arange(rows), rows))


def _compact(numbers: _Numbers, rows: int) -> _Numbers:
    """Return row numbers in the smallest integer type: a million of them in 4 MB."""
    return numbers.astype(np.min_scalar_type(rows))


def _checked_count(action: str, count: int) -> int:
    if count < 0:
        raise ConfigError(f"{action} {count} rows: a count is at least 0")
    return count

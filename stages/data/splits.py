"""How rows are taken from a data set: which split, which of its rows, and under which names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports import Dataset, DatasetStore, Row, StreamedRow
from stages.chat.conversations import parse_conversation
from stages.data.views import rename, select

# the seed of which rows are held out: of a run's own, what one run holds out another would train on
HELD_OUT_SEED = 0
T = TypeVar("T")
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DataConfig:
    """Which rows of a data set are read, and by which names of columns."""

    # the split to train on; null for the first, which is "train" where there is one
    train: str | None = None
    test: tuple[str, ...] | None = None  # the splits held out; null for all others
    limit: PositiveInt | None = None  # training rows, from the top; null for all
    # share of the rows kept back where no split is held out
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    held_out_rows: PositiveInt = 200  # of each held-out set, at most: a seeded choice
    # renamed: reading.columns.question=prompt
    columns: Mapping[str, str] = field(default_factory=dict)
    # take rows as they come, and no more of the data than that; needs reading.limit or max_steps
    stream: bool = False

    def wanted(self, most: int | None) -> int | None:
        """Rows to train on, at most; None where it is not known."""
        return min((count for count in (self.limit, most) if count is not None), default=None)


def check_generated(dataset: str, reading: DataConfig) -> None:
    """Raise ConfigError for a setting that means nothing where problems are made, and no rows are
    read.
    """
    if reading != replace(DataConfig(), limit=reading.limit, held_out_rows=reading.held_out_rows):
        raise ConfigError(
            f"dataset={dataset} has no rows that are read: of reading.… it takes limit and "
            "held_out_rows, how many problems to train on and to hold out"
        )


@dataclass(frozen=True)
class DatasetReader:
    """A data set as a run reads it: rows are read when they are asked for."""

    store: DatasetStore
    dataset: str
    how: DataConfig
    seed: int
    max_rows: int | None  # rows that the run can train on; None: not known
    read: Callable[[Row, str], Any] = parse_conversation  # of a row and its place

    def splits(self) -> tuple[str, tuple[str, ...]]:
        """The one to train on, and those held out; raises DataError for one that is not there."""
        there = tuple(self.store.splits(self.dataset))
        train = self.how.train or there[0]
        test = (
            tuple(split for split in there if split != train)
            if self.how.test is None
            else self.how.test
        )
        check_splits(self.dataset, (train, *test), there)
        if train in test:
            raise DataError(
                f"{self.dataset}: the split {train!r} is both trained on and held out; "
                "choose others (reading.train, reading.test)"
            )
        return train, test

    def opened(self, split: str, wanted: int) -> Dataset:
        """A split; of a stream so many rows of it as are `wanted`, and as many more as may be held
        out.
        """
        if self.how.stream:
            rows = islice(
                self.store.stream(self.dataset, split=split), wanted + self.how.held_out_rows
            )
            return BufferedRows(rows, f"{self.dataset} {split}")
        return self.store.load(self.dataset, split=split)

    def trained_on(self, data: Dataset, but: Indices) -> Dataset:
        """The rows to train on, in their order: not those kept back."""
        chosen = np.delete(np.arange(len(data)), but)[: self.how.limit]
        if self.max_rows is not None and self.max_rows < len(chosen):
            random = np.random.default_rng(self.seed)
            chosen = np.sort(random.choice(chosen, self.max_rows, replace=False, shuffle=False))
        return select(data, chosen)

    def kept_back(self, data: Dataset) -> Indices:
        """Rows for a held-out set, where no split is one: the same for every seed."""
        rows, share = len(data), self.how.held_out
        count = min(round(rows * share), self.how.held_out_rows)
        if not 0 < count < rows:
            # what is wrong with the rows themselves is to be mended first
            tuple(ParsedRows(data, self.read))
            better = 1 / rows if count == 0 else 1 - 1 / rows
            mend = "add rows" if rows < 2 else f"add rows, or set reading.held_out={better:.3g}"
            raise DataError(
                f"{self.dataset}: reading.held_out={share} of {rows} rows keeps {count} back; "
                f"at least one row must be held out and one trained on: {mend}"
            )
        return np.sort(np.random.default_rng(HELD_OUT_SEED).choice(rows, count, replace=False))


def check_splits(dataset: str, wanted: Iterable[str], there: Sequence[str]) -> None:
    """Raise DataError for a split that a data set does not have."""
    for split in wanted:
        if split not in there:
            raise DataError(f"{dataset} has no split {split!r}; {did_you_mean(split, there)}")


def rename_columns(data: Dataset, columns: Mapping[str, str]) -> Dataset:
    """Under the names of columns that were set; raises DataError for a column that is not there."""
    return rename(data, columns) if columns else data


def sample_rows(data: Dataset, most: int, seed: int) -> Dataset:
    """A seeded choice of at most so many rows, in their order."""
    if len(data) <= most:
        return data
    return select(data, np.sort(np.random.default_rng(seed).choice(len(data), most, replace=False)))


class ParsedRows(Sequence[T]):
    """The rows of a data set as what they say, each read when it is asked for."""

    def __init__(self, data: Dataset, read: Callable[[Row, str], T]) -> None:
        self._data, self._read = data, read

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        return self._read(self._data[index], self._data.where(index))


class BufferedRows:
    """Rows that came by in a stream, kept in memory."""

    def __init__(self, rows: Iterable[StreamedRow], shown: str) -> None:
        self._rows = tuple(rows)
        if not self._rows:
            raise DataError(f"{shown}: no row came")
        digest = hashlib.sha256()
        for each in self._rows:
            digest.update(json.dumps(each.row, sort_keys=True, default=repr).encode() + b"\n")
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Row:
        return self._rows[index].row

    def where(self, index: int) -> str:
        return self._rows[index].where

"""Choice of the rows to read from a data set: splits, limits, held-out rows, column names."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
import structlog
from pydantic import Field, PositiveInt

from kitchen.config.splits import SplitRoles, assign_splits
from kitchen.errors import ConfigError, DataError
from kitchen.ports import Dataset, DatasetStore, Row, StreamedRow
from stages.chat.items import content_digest
from stages.chat.plain_text import parse_row
from stages.data.bad_rows import BadRow, BadRows, BadRowsName, RowReader
from stages.data.views import rename, select

# seed of the choice of held-out rows. It is not the seed of the run, so that runs with other seeds
# are measured on the same rows, and do not train on rows that another run holds out
HELD_OUT_SEED = 0
T = TypeVar("T")
log = structlog.get_logger("stages.data")
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowsConfig:
    """Column names of rows, and what to do with bad rows, where splits are named otherwise."""

    # columns to rename: reading.columns.OLD=NEW
    columns: Mapping[str, str] = field(default_factory=dict)
    # rows that cannot be read, rendered or graded: stop with an error, or drop and list them
    bad_rows: BadRowsName = "error"


@dataclass(frozen=True)
class HeldOutRowsConfig(RowsConfig):
    """Choice of the rows that training runs hold out, to evaluate on the same ones."""

    # share of the rows that training holds out if there is no held-out split: only these are
    # evaluated; null for all rows
    held_out: Annotated[float, Field(gt=0, lt=1)] | None = None
    # maximum number of rows that training holds out per set, 200 by default: only these are
    # evaluated; null for all, or for 200 with held_out
    held_out_rows: PositiveInt | None = None


@dataclass(frozen=True)
class DataConfig:
    """Choice of the rows to read from a data set, and their column names."""

    # training split; null for "train" or, if there is none, the only split whose name does not mark
    # it as held out, as test, dev and validation do
    train: str | None = None
    # held-out splits; null for all others, except further training splits such as train_small
    test: tuple[str, ...] | None = None
    # maximum number of training rows, counted from the first row; null for all
    limit: PositiveInt | None = None
    # share of the rows to hold out if there is no held-out split
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.1
    # maximum number of rows per held-out set; the same rows are chosen whatever the run's seed
    held_out_rows: PositiveInt = 200
    # columns to rename: reading.columns.OLD=NEW
    columns: Mapping[str, str] = field(default_factory=dict)
    # rows that cannot be read or rendered: error stops the run; drop leaves them out and lists them
    bad_rows: BadRowsName = "error"
    # stream the rows and read only as many as needed; requires reading.limit or max_steps
    stream: bool = False

    def __post_init__(self) -> None:
        if self.held_out == 0:
            raise ConfigError(
                f"reading.held_out={self.held_out:g}: every run measures its weights on held-out "
                "rows, so there must be some. Set a small share, such as reading.held_out=0.01, or "
                "hold out another split (reading.test)"
            )

    def row_limit(self, max_rows: int | None) -> int | None:
        """Return the smaller of the two limits on training rows; None if there is neither."""
        if self.bad_rows == "drop":
            max_rows = None  # more rows than are trained on, because some may be left out
        limits = [count for count in (self.limit, max_rows) if count is not None]
        return min(limits, default=None)


def check_generated(dataset: str, reading: DataConfig) -> None:
    """Raise ConfigError for a setting that has no effect on generated problems."""
    if reading != replace(DataConfig(), limit=reading.limit, held_out_rows=reading.held_out_rows):
        raise ConfigError(
            f"dataset={dataset} generates its problems: of the settings of reading, it takes limit "
            "and held_out_rows, the numbers of problems to train on and to hold out; leave out the "
            "others"
        )


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split with their final column names."""

    data: Dataset
    fingerprint: str  # of the split as it is stored
    bad_rows: tuple[BadRow, ...] = ()  # those that were left out


@dataclass(frozen=True)
class DatasetReader:
    """Opens the splits of one data set, and chooses their training and held-out rows."""

    store: DatasetStore
    dataset: str
    config: DataConfig
    seed: int = 0  # of the choice of training rows
    max_rows: int | None = None  # rows that the run can train on; None if not known
    # parses a row, given its place, to find errors
    parse: Callable[[Row, str], Any] = parse_row

    def splits(self) -> tuple[str, tuple[str, ...]]:
        """Return the training split and the held-out ones; raises DataError for unknown splits."""
        roles = self.roles()
        if roles.train in roles.held_out:
            raise DataError(
                f"{self.dataset}: the split {roles.train!r} is both trained on and held out; "
                "choose others (reading.train, reading.test)"
            )
        return roles.train, roles.held_out

    def roles(self) -> SplitRoles:
        """Return the roles of all splits; raises DataError for unknown splits."""
        info = self.store.info(self.dataset)
        return assign_splits(info, self.config.train, self.config.test)

    def read(self, split: str, count: int) -> SplitRows:
        """Read a split; a stream is read up to `count` rows and those that may be held out."""
        if self.config.bad_rows == "drop":
            return self._read_good(split, count)
        if self.config.stream:
            data = self._buffered(self.store.stream(self.dataset, split=split), split, count)
        else:
            data = self.store.load(self.dataset, split=split)
        return SplitRows(rename_columns(data, self.config.columns), data.fingerprint)

    def _read_good(self, split: str, count: int) -> SplitRows:
        """Read the rows of a split that have no error, and list the others."""
        bad = BadRows(split)
        reader = RowReader(self.config.columns, self.parse)
        if self.config.stream:
            stream = self.store.stream(self.dataset, split=split, on_bad_row=bad.add)
            with bad.explained():
                data = self._buffered(reader.good_stream(stream, bad), split, count)
            fingerprint = data.fingerprint
        else:
            with bad.explained():
                data = self.store.load(self.dataset, split=split, on_bad_row=bad.add)
            fingerprint = data.fingerprint
            data = reader.good_rows(data, bad)
        rows = rename_columns(data, self.config.columns)
        return SplitRows(rows, fingerprint, tuple(bad.rows))

    def _buffered(self, stream: Iterator[StreamedRow], split: str, count: int) -> Dataset:
        rows = islice(stream, min(count + self.config.held_out_rows, sys.maxsize))
        return BufferedRows(rows, f"{self.dataset} {split}")

    def training_rows(self, data: Dataset, held_out: Indices) -> tuple[Dataset, int]:
        """Return the rows to train on, in their order, without the held-out ones.

        Rows with the content of a held-out row are left out and replaced by others, unless there
        are no others; returns how many were left out. Only rows that would be trained on, and their
        replacements, are read.
        """
        contents = {content_digest(data[at]) for at in held_out.tolist()}
        others = np.delete(np.arange(len(data)), held_out)
        order, count = self._order(others)
        if not contents:
            return select(data, np.sort(order[:count])), 0
        equal = np.zeros(len(order), dtype=bool)
        end = found = 0
        while end < len(order) and found < count:
            equal[end] = content_digest(data[int(order[end])]) in contents
            found += not equal[end]
            end += 1
        if not found and equal.any():
            log.warning(
                f"{self.dataset}: all rows to train on equal held-out rows, so evaluations say "
                "nothing about new ones: add other rows, or hold out another split (reading.test)"
            )
            return select(data, np.sort(order[:count])), 0
        return select(data, np.sort(order[:end][~equal[:end]])), int(equal.sum())

    def _order(self, indices: Indices) -> tuple[Indices, int]:
        """Return the order in which the indices are chosen, and how many the run trains on."""
        within = indices[: self.config.limit]
        max_rows = self.max_rows if self.config.bad_rows == "error" else None
        if max_rows is None or max_rows >= len(within):
            return indices, len(within)
        random = np.random.default_rng(self.seed)
        chosen = random.choice(within, max_rows, replace=False, shuffle=False)
        rest = random.permutation(np.setdiff1d(within, chosen))
        return np.concatenate([np.sort(chosen), rest, indices[len(within) :]]), max_rows

    def held_out_rows(self, split: SplitRows) -> Indices:
        """Choose the rows to hold out if no split is held out; the same for every run's seed."""
        rows = len(split.data)
        share = self.config.held_out
        count = min(round(rows * share), self.config.held_out_rows)
        if not 0 < count < rows:
            self._refuse_share(split, count)
        random = np.random.default_rng(HELD_OUT_SEED)
        return np.sort(random.choice(rows, count, replace=False))

    def _refuse_share(self, split: SplitRows, count: int) -> None:
        tuple(ParsedRows(split.data, self.parse))  # errors in the rows themselves come first
        rows, bad = len(split.data), split.bad_rows
        better = 1 / rows if count == 0 else 1 - 1 / rows
        fix = "add rows" if rows < 2 else f"add rows, or set reading.held_out={better:.3g}"
        if bad:
            fix = (
                f"{len(bad)} of {rows + len(bad)} rows were left out by reading.bad_rows=drop, the "
                f"first because {bad[0].reason} ({bad[0].where}): correct them, {fix}"
            )
        raise DataError(
            f"{self.dataset}: reading.held_out={self.config.held_out} of {rows} rows holds "
            f"{count} out; at least one row must be held out and one trained on: {fix}"
        )


def rename_columns(data: Dataset, columns: Mapping[str, str]) -> Dataset:
    """Rename columns if there are any to rename; raises DataError for an unknown column."""
    return rename(data, columns) if columns else data


def sample_held_out(data: Dataset, count: int) -> Dataset:
    """Return at most `count` rows of a held-out split, in their order; the same in every run."""
    if len(data) <= count:
        return data
    random = np.random.default_rng(HELD_OUT_SEED)
    return select(data, np.sort(random.choice(len(data), count, replace=False)))


class ParsedRows(Sequence[T]):
    """The rows of a data set, each parsed on access."""

    def __init__(self, data: Dataset, parse: Callable[[Row, str], T]) -> None:
        self._data, self._parse = data, parse

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        return self._parse(self._data[index], self._data.where(index))


class BufferedRows:
    """A Dataset of streamed rows, held in memory."""

    def __init__(self, rows: Iterable[StreamedRow], name: str) -> None:
        self._rows = tuple(rows)
        if not self._rows:
            raise DataError(f"{name}: the stream has no rows")
        digest = hashlib.sha256()
        for streamed in self._rows:
            line = json.dumps(streamed.row, sort_keys=True, default=repr)
            digest.update(line.encode() + b"\n")
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Row:
        return self._rows[index].row

    def where(self, index: int) -> str:
        return self._rows[index].where

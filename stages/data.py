"""Rows to train on and rows held out, in epochs and batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports import Dataset, DatasetStore, Row, StreamedRow
from kitchen.rows import renamed, select
from kitchen.stage import Stage
from kitchen.types import Batch, Datum, Facts, Table
from stages.conversations import Conversation, TrainRows, conversation
from stages.render import TrainData

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeldOut:
    """Conversations that are never trained on, by the name of their set."""

    sets: Mapping[str, tuple[Conversation, ...]]


@dataclass(frozen=True)
class Epoch:
    """One pass over the data."""

    number: int  # from 0
    steps: int  # optimiser steps in it: the last one may be cut short by max_steps
    share: float  # of all steps of the run


@dataclass(frozen=True)
class Reading:
    """Which rows of a data set are read, and by which names of columns."""

    train: str | None = None  # the split to train on; null for the first, which is "train" where there is one
    test: tuple[str, ...] | None = None  # the splits held out; null for all others
    limit: PositiveInt | None = None  # training rows, from the top; null for all
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1  # share of the rows kept back where no split is held out
    held_out_rows: PositiveInt = 200  # of each held-out set, at most: a seeded choice
    columns: Mapping[str, str] = field(default_factory=dict)  # renamed: reading.columns.question=prompt
    stream: bool = False  # take rows as they come, and no more of the data than that; needs reading.limit or max_steps


class LoadDataset(Stage):
    """Read a data set: rows to train on, and as held-out sets its other splits, or rows kept back if it has none.

    No more than `most` rows to train on are taken, a seeded choice: what a run of a few steps will not see, it need
    not read. Rows are read when they are asked for, so that memory does not grow with the data set.
    """

    dataset: str
    reading: Reading = Reading()
    seed: int = 0
    most: int | None = None  # rows that the run can train on; None: not known

    def __post_init__(self) -> None:
        if self.reading.stream and self._wanted() is None:
            raise ConfigError("reading.stream=true takes rows as they come, and must know how many: "
                              "set reading.limit or max_steps")

    def run(self, store: DatasetStore) -> tuple[TrainRows, HeldOut, Facts]:
        train, test = self._splits(store)
        loaded = {split: self._read(store, split, train) for split in (train, *test)}
        rows, held = loaded[train], {split: self._held(loaded[split]) for split in test}
        chosen = np.arange(len(rows))
        if not test:
            back = self._kept_back(len(rows), rows)
            held, chosen = {"held_out": select(rows, np.sort(back))}, np.delete(chosen, back)
        chosen = chosen[: self.reading.limit]
        if self.most is not None and self.most < len(chosen):
            chosen = np.sort(np.random.default_rng(self.seed).choice(chosen, self.most, replace=False, shuffle=False))
        facts = Facts({f"data.{split}.sha256": data.fingerprint for split, data in loaded.items()})
        sets = {split: tuple(Conversations(data)) for split, data in held.items()}
        return TrainRows(Conversations(select(rows, chosen))), HeldOut(sets), facts

    preview = run

    def verify(self, store: DatasetStore) -> None:
        self._splits(store)

    def _splits(self, store: DatasetStore) -> tuple[str, tuple[str, ...]]:
        """The one to train on, and those held out; raises DataError for one that is not there."""
        there = tuple(store.splits(self.dataset))
        train = self.reading.train or there[0]
        test = tuple(split for split in there if split != train) if self.reading.test is None else self.reading.test
        for split in (train, *test):
            if split not in there:
                raise DataError(f"{self.dataset} has no split {split!r}; {did_you_mean(split, there)}")
        if train in test:
            raise DataError(f"{self.dataset}: the split {train!r} is both trained on and held out; "
                            "choose others (reading.train, reading.test)")
        return train, test

    def _read(self, store: DatasetStore, split: str, train: str) -> Dataset:
        if self.reading.stream:
            count = (self._wanted() or 0) + self.reading.held_out_rows if split == train else self.reading.held_out_rows
            data: Dataset = Taken(islice(store.stream(self.dataset, split=split), count), f"{self.dataset} {split}")
        else:
            data = store.load(self.dataset, split=split)
        return renamed(data, self.reading.columns) if self.reading.columns else data

    def _wanted(self) -> int | None:
        return min((count for count in (self.reading.limit, self.most) if count is not None), default=None)

    def _held(self, data: Dataset) -> Dataset:
        few = self.reading.held_out_rows
        return data if len(data) <= few else select(data, np.sort(self._choice(len(data), few)))

    def _kept_back(self, rows: int, data: Dataset) -> Indices:
        share = self.reading.held_out
        count = min(round(rows * share), self.reading.held_out_rows)
        if not 0 < count < rows:
            tuple(Conversations(data))  # what is wrong with the rows themselves is to be mended first
            better = 1 / rows if count == 0 else 1 - 1 / rows
            mend = "add rows" if rows < 2 else f"add rows, or set reading.held_out={better:.3g}"
            raise DataError(f"{self.dataset}: reading.held_out={share} of {rows} rows keeps {count} back; "
                            f"at least one row must be held out and one trained on: {mend}")
        return self._choice(rows, count)

    def _choice(self, rows: int, count: int) -> Indices:
        return np.random.default_rng(self.seed).choice(rows, count, replace=False, shuffle=False)


class Conversations(Sequence[Conversation]):
    """The rows of a data set as conversations, each read when it is asked for."""

    def __init__(self, data: Dataset) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        return conversation(self._data[index], self._data.where(index))


class Taken:
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


class Epochs(Stage):
    """`count` passes over the data, of at most `max_steps` optimiser steps in all."""

    count: int
    batch_size: int
    max_steps: int | None = None

    def run(self, data: TrainData) -> Iterable[Epoch]:
        each = -(-len(data.data) // self.batch_size)
        total = min(each * self.count, self.max_steps or each * self.count)
        steps = [min(each, total - done) for done in range(0, total, each)]
        return [Epoch(number, some, some / total) for number, some in enumerate(steps)]

    def preview(self, data: TrainData) -> Table:
        steps = sum(epoch.steps for epoch in self.run(data))
        return Table("Steps", ("what", "count"), (
            ("datums in an epoch", f"{len(data.data):,}"), ("datums in a batch", f"{self.batch_size:,}"),
            ("optimiser steps in all", f"{steps:,}")))


class ShuffledBatches(Stage):
    """Batches of `size` datums in an order of this epoch's own; the last may be smaller.

    Weights are divided by their sum over the batch, so that the loss is a mean over its trained tokens, in nats.
    """

    size: int
    seed: int = 0

    def run(self, data: TrainData, epoch: Epoch) -> Iterable[Batch]:
        order = np.random.default_rng([self.seed, epoch.number]).permutation(len(data.data))
        return _Batches(order[: epoch.steps * self.size], self.size, data.data)


@dataclass(frozen=True)
class _Batches:
    """Batches made when they are asked for."""

    order: Indices
    size: int
    data: Sequence[Datum]

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.order), self.size):
            yield Batch(averaged([self.data[index] for index in self.order[start : start + self.size].tolist()]))


def averaged(data: Sequence[Datum]) -> tuple[Datum, ...]:
    """The same datums with weights that sum to 1 over all of them."""
    total = sum(float(np.sum(datum.loss_inputs["weights"])) for datum in data)
    shares = [(datum.loss_inputs["weights"] / total).astype(np.float32) for datum in data]
    return tuple(Datum(d.tokens, {**d.loss_inputs, "weights": w}) for d, w in zip(data, shares, strict=True))

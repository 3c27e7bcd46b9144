"""Rows to train on and rows held out, in epochs and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from kitchen.errors import ConfigError
from kitchen.ports import Dataset, DatasetStore
from kitchen.stage import Stage
from kitchen.types import Batch, Datum, Facts, Price, Table
from stages.chat.conversations import Conversation, TrainRows, parse_conversation
from stages.chat.render import TrainData
from stages.chat.token_cost import EpochSize, token_cost_rows
from stages.data.splits import DataConfig as DataConfig  # recipes that load data set it
from stages.data.splits import DatasetReader, Indices, ParsedRows, rename_columns, sample_rows
from stages.data.views import select

T = TypeVar("T")
DEFAULT_DATASET = "ingredients"  # where a recipe is told of none


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


class DatasetLoader(Stage):
    """What stages that read a data set have in common."""

    dataset: str
    reading: DataConfig = DataConfig()
    seed: int = 0
    max_rows: int | None = None  # rows that the run can train on; None: not known

    def __post_init__(self) -> None:
        if self.reading.stream and self.reading.wanted(self.max_rows) is None:
            raise ConfigError(
                "reading.stream=true takes rows as they come, and must know how many: set "
                "reading.limit "
                "(a recipe of whole rows takes max_steps too, if rendering.overlong=error)"
            )

    def verify(self, store: DatasetStore) -> None:
        DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows).splits()


class LoadDataset(DatasetLoader):
    """Read a data set: rows to train on, and as held-out sets its other splits, or rows kept back
    if it has none.

    No more than `most` rows to train on are taken, a seeded choice: what a run of a few steps will
    not see, it need not read.
    """

    def run(self, store: DatasetStore) -> tuple[TrainRows, HeldOut, Facts, Table]:
        found = load_splits(
            DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows)
        )
        sets = HeldOut(
            {
                split: tuple(ParsedRows(data, parse_conversation))
                for split, data in found.held_out.items()
            }
        )
        return (
            TrainRows(ParsedRows(found.train, parse_conversation)),
            sets,
            found.facts,
            found.table,
        )

    preview = run


@dataclass(frozen=True)
class LoadedDataset:
    """A data set in the parts that a run has for it."""

    train_split: str  # that the rows to train on are of
    train: Dataset
    held_out: Mapping[str, Dataset]  # held out, by name
    facts: Facts
    table: Table

    def digest(self, split: str) -> str | None:
        """None of rows kept back, which are no split."""
        return self.facts.get(f"data.{split}.sha256")


def load_splits(reader: DatasetReader) -> LoadedDataset:
    """The rows to train on and those held out; raises DataError."""
    train, test = reader.splits()
    opened = {
        split: reader.opened(split, wanted)
        for split, wanted in (
            (train, reader.how.wanted(reader.max_rows) or 0),
            *((split, 0) for split in test),
        )
    }
    facts = Facts({f"data.{split}.sha256": data.fingerprint for split, data in opened.items()})
    facts[f"data.{train}.dataset"] = reader.dataset
    rows = {split: rename_columns(data, reader.how.columns) for split, data in opened.items()}
    back = np.zeros(0, np.int64) if test else reader.kept_back(rows[train])
    held = (
        {split: sample_rows(rows[split], reader.how.held_out_rows, reader.seed) for split in test}
        if test
        else {"held_out": select(rows[train], back)}
    )
    chosen = reader.trained_on(rows[train], back)
    parts = [
        (train, "trained on", chosen),
        *((split, "held out", data) for split, data in held.items()),
    ]
    told = tuple(
        (split, what, f"{len(data):,}", f"{len(rows.get(split, rows[train])):,}")
        for split, what, data in parts
    )
    commit = reader.store.info(reader.dataset).revision
    title = f"Rows of {reader.dataset}{f' at {commit}' if commit else ''}"
    return LoadedDataset(
        train, chosen, held, facts, Table(title, ("split", "are", "rows", "of"), told)
    )


class Epochs(Stage):
    """`count` passes over the data, of at most `max_steps` optimiser steps in all."""

    count: int
    batch_size: int
    max_steps: int | None = None

    def run(self, data: TrainData) -> Iterable[Epoch]:
        return self._of(len(data.data))

    def _of(self, items: int) -> Sequence[Epoch]:
        each = -(-items // self.batch_size)
        total = min(each * self.count, self.max_steps or each * self.count)
        steps = [min(each, total - done) for done in range(0, total, each)]
        return [Epoch(number, some, some / total) for number, some in enumerate(steps)]

    def preview(self, size: EpochSize, price: Price | None = None) -> Table:
        epochs, lead = self._of(size.count), size.lead
        read = sum(min(epoch.steps * self.batch_size, size.count) for epoch in epochs)
        tokens, exactly = round(size.tokens * read / size.count), read % size.count == 0
        return Table(
            "Steps",
            ("what", "count"),
            (
                (f"{size.what} in an epoch", f"{lead}{size.count:,}"),
                (f"{size.what} in a batch", f"{self.batch_size:,}"),
                ("optimiser steps in all", f"{lead}{sum(epoch.steps for epoch in epochs):,}"),
                *token_cost_rows(
                    "tokens read in all", tokens, lead if exactly else f"{lead}about ", price
                ),
            ),
        )


class ShuffledBatches(Stage):
    """Batches of `size` datums in an order of this epoch's own; the last may be smaller.

    Weights are divided by their sum over the batch, so that the loss is a mean over its trained
    tokens, in nats.
    """

    size: int
    seed: int = 0

    def run(self, data: TrainData, epoch: Epoch) -> Iterable[Batch]:
        return shuffled_batches(data.data, epoch, self.size, self.seed, normalise_weights)


def shuffled_batches(
    items: Sequence[T],
    epoch: Epoch,
    size: int,
    seed: int,
    joined: Callable[[Sequence[T]], tuple[Datum, ...]],
) -> Iterable[Batch]:
    """Batches of `size` items, `joined` when they are asked for, in an order of this epoch's own."""
    order = np.random.default_rng([seed, epoch.number]).permutation(len(items))[
        : epoch.steps * size
    ]
    return _Batches(order, size, items, joined)


@dataclass(frozen=True)
class _Batches(Generic[T]):
    """Batches made when they are asked for."""

    order: Indices
    size: int
    items: Sequence[T]
    joined: Callable[[Sequence[T]], tuple[Datum, ...]]

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.order), self.size):
            yield Batch(
                self.joined(
                    [self.items[at] for at in self.order[start : start + self.size].tolist()]
                )
            )


def normalise_weights(data: Sequence[Datum]) -> tuple[Datum, ...]:
    """The same datums with weights that sum to 1 over all of them."""
    total = sum(float(np.sum(datum.loss_inputs["weights"])) for datum in data)
    shares = [(datum.loss_inputs["weights"] / total).astype(np.float32) for datum in data]
    return tuple(
        Datum(d.tokens, {**d.loss_inputs, "weights": w}) for d, w in zip(data, shares, strict=True)
    )

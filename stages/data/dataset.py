"""Training and held-out rows of one data set, in epochs and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

import numpy as np
import structlog

from kitchen.config.splits import shortened
from kitchen.errors import ConfigError
from kitchen.ports import Dataset, DatasetStore
from kitchen.stage import Stage
from kitchen.types import Batch, Datum, Facts, Price, Table
from stages.chat.conversations import Conversation, TrainRows
from stages.chat.plain_text import parse_row
from stages.chat.render import TrainData
from stages.chat.token_cost import EpochSize, token_cost_rows
from stages.data.bad_rows import BadRow
from stages.data.splits import DataConfig as DataConfig  # re-exported for recipes
from stages.data.splits import DatasetReader, Indices, ParsedRows, sample_held_out
from stages.data.views import select
from stages.train.schedules import PlannedSteps

T = TypeVar("T")
B = TypeVar("B")
log = structlog.get_logger("stages.data")
DEFAULT_DATASET = "ingredients"
ROWS_COLUMNS = ("split", "use", "rows", "available", "files")


@dataclass(frozen=True)
class HeldOut:
    """Conversations that are never trained on, by the name of their set."""

    sets: Mapping[str, tuple[Conversation, ...]]
    bad_rows: tuple[BadRow, ...] = ()  # rows left out, of the training data too


@dataclass(frozen=True)
class Epoch:
    """One pass over the data."""

    number: int  # from 0
    steps: int  # optimiser steps; max_steps may cut the last epoch short
    share: float  # its share of all optimiser steps of the run
    end: int = 0  # optimiser steps of the run up to its end


class DatasetLoader(Stage):
    """Base class of stages that read one data set."""

    dataset: str
    reading: DataConfig = DataConfig()
    seed: int = 0
    max_rows: int | None = None  # rows that the run can train on; None if not known

    def __post_init__(self) -> None:
        if self.reading.stream and self.reading.row_limit(self.max_rows) is None:
            raise ConfigError(
                "reading.stream=true needs to know how many rows to take from the stream: set "
                "reading.limit (or, in a recipe of conversations, max_steps, with "
                "rendering.overlong=error and reading.bad_rows=error)"
            )

    def verify(self, store: DatasetStore) -> None:
        DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows).splits()


class LoadDataset(DatasetLoader):
    """Read training rows and held-out sets: the other splits, or else a share of the rows.

    At most `max_rows` training rows are read, chosen by the seed, because a run of a few steps
    trains on no more.
    """

    def run(self, store: DatasetStore) -> tuple[TrainRows, HeldOut, Facts, Table]:
        reader = DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows)
        loaded = load_splits(reader)
        held_out = {
            split: tuple(ParsedRows(data, parse_row)) for split, data in loaded.held_out.items()
        }
        train = TrainRows(ParsedRows(loaded.train, parse_row))
        return train, HeldOut(held_out, loaded.bad_rows), loaded.facts, loaded.table

    preview = run


@dataclass(frozen=True)
class LoadedDataset:
    """The training rows and held-out sets of a data set, before they are parsed."""

    train_split: str  # the split that the training rows come from
    train: Dataset
    held_out: Mapping[str, Dataset]  # by set name
    facts: Facts
    table: Table
    bad_rows: tuple[BadRow, ...]  # rows left out of all splits


def load_splits(reader: DatasetReader) -> LoadedDataset:
    """Load the training rows and the held-out sets; raises DataError."""
    train_split, test_splits = reader.splits()
    row_limit = reader.config.row_limit(reader.max_rows) or 0
    opened = {train_split: reader.read(train_split, row_limit)}
    opened |= {split: reader.read(split, 0) for split in test_splits}
    facts = Facts({f"data.{split}.sha256": data.fingerprint for split, data in opened.items()})
    facts[f"data.{train_split}.dataset"] = reader.dataset
    rows = {split: read.data for split, read in opened.items()}
    if test_splits:
        held_out_indices = np.zeros(0, np.int64)
        held_out = {
            split: sample_held_out(rows[split], reader.config.held_out_rows)
            for split in test_splits
        }
    else:
        held_out_indices = reader.held_out_rows(opened[train_split])
        held_out = {"held_out": select(rows[train_split], held_out_indices)}
    train, equal = reader.training_rows(rows[train_split], held_out_indices)
    parts = [(train_split, "trained on", train)]
    parts += [(split, "held out", data) for split, data in held_out.items()]
    counts = [
        (split, use, f"{len(data):,}", f"{len(rows.get(split, rows[train_split])):,}")
        for split, use, data in parts
    ]
    if equal:
        counts.append((train_split, "left out: equal to held-out rows", f"{equal:,}", ""))
    bad_rows = tuple(chain.from_iterable(read.bad_rows for read in opened.values()))
    table = _rows_table(reader, counts)
    return LoadedDataset(train_split, train, held_out, facts, table, bad_rows)


def _rows_table(reader: DatasetReader, counts: Sequence[tuple[str, str, str, str]]) -> Table:
    """Return a table of the split of each set, with the files that were taken for it."""
    info = reader.store.info(reader.dataset)
    rows = [(*count, shortened(info.files.get(count[0], ()))) for count in counts]
    for split in reader.roles().unused:
        rows.append((split, "not used", "", "", shortened(info.files.get(split, ()))))
    if info.not_read:
        rows.append(("", "not read", "", "", shortened(info.not_read)))
    title = f"Rows of {info.name}{f' at {info.revision}' if info.revision else ''}"
    return Table(title, ROWS_COLUMNS, tuple(rows))


class Epochs(Stage):
    """Pass over the data `count` times, in at most `max_steps` optimiser steps in all."""

    count: int
    batch_size: int
    max_steps: int | None = None

    def run(self, data: TrainData) -> Iterable[Epoch]:
        if note := self._unreached(len(data.data)):
            log.warning(note)
        return self._epochs(len(data.data))

    def _unreached(self, items: int) -> str:
        """Return a sentence if the epochs have fewer steps than max_steps; else ""."""
        steps = -(-items // self.batch_size) * self.count
        if self.max_steps is None or self.max_steps <= steps:
            return ""
        return (
            f"max_steps={self.max_steps} is not reached: epochs={self.count} has {steps} optimiser "
            "steps; raise epochs to train longer"
        )

    def _epochs(self, items: int) -> Sequence[Epoch]:
        per_epoch = -(-items // self.batch_size)
        total = min(per_epoch * self.count, self.max_steps or per_epoch * self.count)
        steps = [min(per_epoch, total - done) for done in range(0, total, per_epoch)]
        return [
            Epoch(number, count, count / total, min((number + 1) * per_epoch, total))
            for number, count in enumerate(steps)
        ]

    def preview(self, size: EpochSize, price: Price | None = None) -> tuple[PlannedSteps, Table]:
        epochs = self._epochs(size.count)
        steps = sum(epoch.steps for epoch in epochs)
        note = self._unreached(size.count)
        items_read = sum(min(epoch.steps * self.batch_size, size.count) for epoch in epochs)
        tokens = round(size.tokens * items_read / size.count)
        is_exact = items_read % size.count == 0
        bound = size.bound if is_exact else f"{size.bound}about "
        rows = (
            (f"{size.unit} in an epoch", f"{size.bound}{size.count:,}"),
            (f"{size.unit} in a batch", f"{self.batch_size:,}"),
            ("optimiser steps in all", f"{size.bound}{steps:,}"),
            *token_cost_rows("tokens read in all", tokens, bound, price),
            *([("note", note)] if note else []),
        )
        return PlannedSteps(steps), Table("Steps", ("quantity", "count"), rows)


class ShuffledBatches(Stage):
    """Batches of `size` datums, in a new order each epoch; the last batch may be smaller.

    The weights of a batch are divided by their sum, so that the loss is the mean over its trained
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
    collate: Callable[[Sequence[T]], tuple[Datum, ...]],
) -> Iterable[Batch]:
    """Return batches of `size` items in this epoch's order, collated on access."""
    return shuffled_groups(items, epoch, size, seed, lambda group: Batch(collate(group)))


def shuffled_groups(
    items: Sequence[T], epoch: Epoch, size: int, seed: int, collate: Callable[[Sequence[T]], B]
) -> Iterable[B]:
    """Return groups of `size` items in this epoch's order, each collated on access."""
    random = np.random.default_rng([seed, epoch.number])
    order = random.permutation(len(items))[: epoch.steps * size]
    return _Groups(order, size, items, collate)


@dataclass(frozen=True)
class _Groups(Generic[T, B]):
    """A known number of groups, collated on access."""

    order: Indices
    size: int
    items: Sequence[T]
    collate: Callable[[Sequence[T]], B]

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __iter__(self) -> Iterator[B]:
        for start in range(0, len(self.order), self.size):
            indices = self.order[start : start + self.size].tolist()
            yield self.collate([self.items[index] for index in indices])


def normalise_weights(data: Sequence[Datum]) -> tuple[Datum, ...]:
    """Scale the weights of datums so that they sum to 1 over all of them."""
    total = sum(float(np.sum(datum.loss_inputs["weights"])) for datum in data)
    scaled = [(datum.loss_inputs["weights"] / total).astype(np.float32) for datum in data]
    return tuple(
        Datum(datum.tokens, {**datum.loss_inputs, "weights": weights})
        for datum, weights in zip(data, scaled, strict=True)
    )

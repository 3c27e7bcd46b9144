"""Rows to train on and rows held out, in epochs and batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kitchen.errors import DataError
from kitchen.ports import Dataset, DatasetStore
from kitchen.stage import Stage
from kitchen.types import Batch, Datum, Facts, Table
from stages.conversations import Conversation, TrainRows, conversation
from stages.render import TrainData


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


class LoadDataset(Stage):
    """Read a data set: `train`, and its other splits as held-out sets, or a seeded share of `train` if it has none."""

    dataset: str
    limit: int | None = None  # training rows, from the top; None for all
    held_out: float = 0.1  # share of the rows kept back where there is no other split
    seed: int = 0

    def run(self, store: DatasetStore) -> tuple[TrainRows, HeldOut, Facts]:
        splits = store.splits(self.dataset)
        loaded = {split: store.load(self.dataset, split=split) for split in splits}
        train, rest = loaded[splits[0]], {split: loaded[split] for split in splits[1:]}
        chosen = list(range(len(train)))
        held = {split: _conversations(data, range(len(data))) for split, data in rest.items()}
        if not rest:
            back = self._kept_back(train)
            held, kept_back = {"held_out": _conversations(train, back)}, set(back)
            chosen = [index for index in chosen if index not in kept_back]
        rows = _conversations(train, chosen[: self.limit])
        facts = Facts({f"data.{split}.sha256": data.fingerprint for split, data in loaded.items()})
        return TrainRows(rows), HeldOut(held), facts

    preview = run

    def verify(self, store: DatasetStore) -> None:
        store.splits(self.dataset)

    def _kept_back(self, train: Dataset) -> list[int]:
        rows = len(train)
        count = round(rows * self.held_out)
        if not 0 < count < rows:
            _conversations(train, range(rows))  # what is wrong with the rows themselves is to be mended first
            share = 1 / rows if count == 0 else 1 - 1 / rows
            mend = "add rows" if rows < 2 else f"add rows, or set evaluation.held_out={share:.3g}"
            raise DataError(f"{self.dataset}: evaluation.held_out={self.held_out} of {rows} rows keeps {count} back; "
                            f"at least one row must be held out and one trained on: {mend}")
        return sorted(np.random.default_rng(self.seed).permutation(rows)[:count].tolist())


def _conversations(data: Dataset, indices: Iterable[int]) -> tuple[Conversation, ...]:
    return tuple(conversation(data[index], data.where(index)) for index in indices)


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
        order = np.random.default_rng([self.seed, epoch.number]).permutation(len(data.data)).tolist()
        starts = range(0, epoch.steps * self.size, self.size)
        return _Batches([order[at : at + self.size] for at in starts], data.data)


@dataclass(frozen=True)
class _Batches:
    """Batches made when they are asked for."""

    chosen: Sequence[Sequence[int]]
    data: Sequence[Datum]

    def __len__(self) -> int:
        return len(self.chosen)

    def __iter__(self) -> Iterator[Batch]:
        for indices in self.chosen:
            yield Batch(averaged([self.data[index] for index in indices]))


def averaged(data: Sequence[Datum]) -> tuple[Datum, ...]:
    """The same datums with weights that sum to 1 over all of them."""
    total = sum(float(np.sum(datum.loss_inputs["weights"])) for datum in data)
    shares = [(datum.loss_inputs["weights"] / total).astype(np.float32) for datum in data]
    return tuple(Datum(d.tokens, {**d.loss_inputs, "weights": w}) for d, w in zip(data, shares, strict=True))

"""Mixtures of data sets: batches with a share of each, and the loss of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kitchen.errors import ConfigError, DataError
from kitchen.ports import DatasetStore, Tokenizer
from kitchen.stage import Stage
from kitchen.types import Batch, Datum, Facts, LossOutput, Metrics, Price, Table
from stages.chat.conversations import Conversation, TrainRows
from stages.chat.plain_text import parse_row
from stages.chat.render import RenderDataset, TrainData
from stages.chat.token_cost import token_cost_rows
from stages.chat.token_table import MarkedTokens, token_table
from stages.data.bad_rows import BadRow
from stages.data.dataset import (
    ROWS_COLUMNS,
    HeldOut,
    load_splits,
    normalise_weights,
)
from stages.data.splits import DataConfig, DatasetReader, ParsedRows
from stages.train.schedules import PlannedSteps, check_planned

MixtureWeights = Mapping[str, float]  # by data set; only their ratios matter


@dataclass(frozen=True)
class MixtureRows:
    """Conversations to train on, by data set."""

    rows: Mapping[str, Sequence[Conversation]]


@dataclass(frozen=True)
class MixtureData:
    """Rendered training data, by data set."""

    sources: Mapping[str, TrainData]


@dataclass(frozen=True)
class MixtureBatch:
    """The data of one optimiser step, with the data set of each datum."""

    data: tuple[Datum, ...]
    sources: tuple[str, ...]  # one per datum


@dataclass(frozen=True)
class BatchSources:
    """The data set of each datum in a batch."""

    sources: tuple[str, ...]


class LoadMixture(Stage):
    """Read several data sets as LoadDataset reads one; held-out sets are named DATASET/SPLIT."""

    datasets: Sequence[str]
    reading: DataConfig = DataConfig()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.reading.stream and self.reading.limit is None:
            raise ConfigError(
                "reading.stream=true needs to know how many rows to take from the stream: set "
                "reading.limit"
            )
        if not self.datasets:
            raise ConfigError("the mixture has no data set: add one, as in mixture.ingredients=1")

    def run(self, store: DatasetStore) -> tuple[MixtureRows, HeldOut, Facts, Table]:
        loaded = {name: load_splits(self._reader(store, name)) for name in self.datasets}
        check_no_leakage({name: dataset.facts for name, dataset in loaded.items()})
        train: dict[str, Sequence[Conversation]] = {}
        held_out: dict[str, tuple[Conversation, ...]] = {}
        facts = Facts()
        table_rows: list[tuple[str, ...]] = []
        bad_rows: list[BadRow] = []
        for name, dataset in loaded.items():
            train[name] = ParsedRows(dataset.train, parse_row)
            for split, data in dataset.held_out.items():
                held_out[f"{name}/{split}"] = tuple(ParsedRows(data, parse_row))
            for key, value in dataset.facts.items():
                facts[key.replace("data.", f"data.{name}.", 1)] = value
            table_rows += [(name, *row) for row in dataset.table.rows]
            bad_rows += [replace(row, split=f"{name}/{row.split}") for row in dataset.bad_rows]
        table = Table("Rows", ("data set", *ROWS_COLUMNS), tuple(table_rows))
        return MixtureRows(train), HeldOut(held_out, tuple(bad_rows)), facts, table

    preview = run

    def verify(self, store: DatasetStore) -> None:
        for name in self.datasets:
            self._reader(store, name).splits()

    def _reader(self, store: DatasetStore, name: str) -> DatasetReader:
        return DatasetReader(store, name, self.reading, self.seed, None)


def check_no_leakage(facts: Mapping[str, Facts]) -> None:
    """Raise DataError if the training split of one data set is a held-out split of another.

    The facts of a data set are the digests of its splits, and the name of the training split.
    """
    digests = {name: _split_digests(facts_of_set) for name, facts_of_set in facts.items()}
    for name, (_, held_out) in digests.items():
        for other_name, (train_digest, _) in digests.items():
            leaked = [split for split, digest in held_out.items() if digest == train_digest]
            if leaked and other_name != name:
                raise DataError(
                    f"{other_name} would be trained on, but is also the held-out split "
                    f"{leaked[0]!r} of {name}; leave one of the two out"
                )


def _split_digests(facts: Facts) -> tuple[str | None, Mapping[str, str]]:
    """Return the digest of the training split, and those of the held-out splits."""
    digests = {
        key.removeprefix("data.").removesuffix(".sha256"): str(value)
        for key, value in facts.items()
        if key.endswith(".sha256")
    }
    trained = [split for split in digests if f"data.{split}.dataset" in facts]
    return digests.pop(trained[0], None) if trained else None, digests


class RenderMixture(Stage):
    """Render conversations to datums, data set by data set."""

    render: RenderDataset

    def run(self, sources: MixtureRows, tokenizer: Tokenizer) -> tuple[MixtureData, Metrics]:
        rendered: dict[str, TrainData] = {}
        metrics = Metrics()
        for name, rows in sources.rows.items():
            rendered[name], counts = self._render(name, rows, tokenizer)
            for key, value in counts.items():
                metrics[key.replace("data/", f"data/{name}/", 1)] = value
        return MixtureData(rendered), metrics

    def _render(
        self, name: str, rows: Sequence[Conversation], tokenizer: Tokenizer
    ) -> tuple[TrainData, Metrics]:
        try:
            return self.render.run(TrainRows(rows), tokenizer)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error

    def preview(
        self, sources: MixtureRows, tokenizer: Tokenizer
    ) -> tuple[MixtureData, Table, Table]:
        mixture, _ = self.run(sources, tokenizer)
        first = [
            MarkedTokens.of_datum(rendered.data[0], name)
            for name, rendered in mixture.sources.items()
        ]
        counts: list[tuple[str, ...]] = []
        for name, rendered in mixture.sources.items():
            counts += [(name, *row) for row in rendered.table().rows]
        table = Table("Training data", ("data set", "quantity", "count"), tuple(counts))
        return mixture, token_table("The first datums", first, tokenizer, column="data set"), table


class MixtureBatches(Stage):
    """Make `steps` batches of `size` datums, with the shares of the data sets by weight.

    The shares hold at any point, to about one datum: the next datum comes from the data set that is
    furthest behind its share. Each data set is read in passes, each in a new order. The weights of
    a batch are divided by their sum, so that the loss is the mean over its trained tokens, in nats.
    """

    weights: MixtureWeights
    size: int
    steps: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_planned(self.size, self.steps)

    def run(self, mixture: MixtureData) -> Iterable[MixtureBatch]:
        order = interleave(self.weights, self.size * self.steps)
        return _Batches(mixture.sources, order, self.size, self.seed)

    def preview(
        self, mixture: MixtureData, price: Price | None = None
    ) -> tuple[PlannedSteps, Table, Table]:
        order = interleave(self.weights, self.size * self.steps)
        total = 0.0
        rows = []
        for name, data in mixture.sources.items():
            count = order.count(name)
            tokens = count * (data.counts.tokens / len(data.data))
            total += tokens
            share, passes = count / len(order), count / len(data.data)
            rows.append((name, f"{share:.1%}", f"{count:,}", f"{passes:.2f}", f"{tokens:,.0f}"))
        columns = ("data set", "share", "datums read", "passes", "tokens, about")
        steps = token_cost_rows("tokens read in all", round(total), "about ", price)
        table = Table("Mixture", columns, tuple(rows))
        return PlannedSteps(self.steps), table, Table("Steps", ("quantity", "count"), steps)


def interleave(weights: MixtureWeights, count: int) -> list[str]:
    """Return the data set of each of `count` datums; raises ConfigError for an invalid weight."""
    invalid = [name for name, weight in weights.items() if not 0 < weight < float("inf")]
    if invalid:
        raise ConfigError(
            f"mixture.{invalid[0]}={weights[invalid[0]]} must be more than 0; to leave a data set "
            "out, do not name it"
        )
    names = list(weights)
    shares = np.array(list(weights.values()), np.float64)
    shares /= shares.sum()
    taken = np.zeros(len(names))
    order = []
    for position in range(1, count + 1):
        furthest_behind = int(np.argmax(shares * position - taken))
        taken[furthest_behind] += 1
        order.append(names[furthest_behind])
    return order


@dataclass(frozen=True)
class _Batches:
    """A known number of mixture batches, made on access."""

    sources: Mapping[str, TrainData]
    order: Sequence[str]  # the data set of each datum of the run
    size: int
    seed: int

    def __len__(self) -> int:
        return len(self.order) // self.size

    def __iter__(self) -> Iterator[MixtureBatch]:
        datums = {
            name: self._datums(index, source.data)
            for index, (name, source) in enumerate(self.sources.items())
        }
        for start in range(0, len(self.order), self.size):
            names = tuple(self.order[start : start + self.size])
            data = normalise_weights([next(datums[name]) for name in names])
            yield MixtureBatch(data, names)

    def _datums(self, source: int, data: Sequence[Datum]) -> Iterator[Datum]:
        """Yield the datums of one data set forever, each pass in a new order."""
        epoch = 0
        while True:
            random = np.random.default_rng([self.seed, source, epoch])
            for index in random.permutation(len(data)).tolist():
                yield data[index]
            epoch += 1


class UnpackMixture(Stage):
    """Split a mixture batch into a plain batch and the data sets of its datums."""

    def run(self, mixture: MixtureBatch) -> tuple[Batch, BatchSources]:
        return Batch(mixture.data), BatchSources(mixture.sources)


class ReportSourceLosses(Stage):
    """Report the loss of each data set in the batch: the mean over its trained tokens, in nats."""

    def run(self, batch: Batch, sources: BatchSources, output: LossOutput) -> Metrics:
        totals = {name: np.zeros(2) for name in dict.fromkeys(sources.sources)}  # loss, weight
        rows = zip(batch.data, sources.sources, output.logprobs, strict=True)
        for datum, name, logprobs in rows:
            weights = datum.loss_inputs["weights"].astype(np.float64)
            totals[name] += -(logprobs.astype(np.float64) @ weights), weights.sum()
        return Metrics(
            {f"loss/{name}": float(loss / weight) for name, (loss, weight) in totals.items()}
        )

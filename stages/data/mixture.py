"""Several data sets at once: each gives its share of every batch, and says how it is learnt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kitchen.errors import ConfigError, DataError
from kitchen.ports import DatasetStore, Tokenizer
from kitchen.stage import Stage
from kitchen.types import Batch, Datum, Facts, LossOutput, Metrics, Price, Table
from stages.chat.conversations import Conversation, TrainRows, parse_conversation
from stages.chat.render import RenderDataset, TrainData
from stages.chat.token_cost import token_cost_rows
from stages.data.dataset import HeldOut, LoadedDataset, load_splits, normalise_weights
from stages.data.splits import DataConfig, DatasetReader, ParsedRows

MixtureWeights = Mapping[str, float]  # of data sets; what counts is their ratios


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
    """The data of one optimiser step, and which data set each datum is from."""

    data: tuple[Datum, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class BatchSources:
    """Which data set each datum of a batch is from."""

    sources: tuple[str, ...]


class LoadMixture(Stage):
    """Read several data sets as LoadDataset reads one; held-out sets are called DATASET/SPLIT."""

    datasets: Sequence[str]
    reading: DataConfig = DataConfig()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.reading.stream and self.reading.limit is None:
            raise ConfigError(
                "reading.stream=true takes rows as they come, and must know how many: set "
                "reading.limit"
            )
        if not self.datasets:
            raise ConfigError("no data set is named: say which, as in mixture.ingredients=1")

    def run(self, store: DatasetStore) -> tuple[MixtureRows, HeldOut, Facts, Table]:
        found = {name: load_splits(self._reader(store, name)) for name in self.datasets}
        rows = {name: ParsedRows(each.train, parse_conversation) for name, each in found.items()}
        held = {
            f"{name}/{split}": tuple(ParsedRows(data, parse_conversation))
            for name, each in found.items()
            for split, data in each.held_out.items()
        }
        _check_apart(found)
        facts = Facts(
            {
                key.replace("data.", f"data.{name}.", 1): value
                for name, each in found.items()
                for key, value in each.facts.items()
            }
        )
        told = tuple((name, *row) for name, each in found.items() for row in each.table.rows)
        return (
            MixtureRows(rows),
            HeldOut(held),
            facts,
            Table("Rows", ("data set", "split", "are", "rows", "of"), told),
        )

    preview = run

    def verify(self, store: DatasetStore) -> None:
        for name in self.datasets:
            self._reader(store, name).splits()

    def _reader(self, store: DatasetStore, name: str) -> DatasetReader:
        return DatasetReader(store, name, self.reading, self.seed, None)


def _check_apart(found: Mapping[str, LoadedDataset]) -> None:
    """Raise DataError where what one data set holds out is another one's split to train on, under
    another name.
    """
    for name, each in found.items():
        for other, its in found.items():
            same = [
                split
                for split in each.held_out
                if each.digest(split) == its.digest(its.train_split)
            ]
            if same and other != name:
                raise DataError(
                    f"{other} is what {name} holds out as {same[0]!r}, and would be trained on; "
                    "leave one "
                    "of the two out"
                )


class RenderMixture(Stage):
    """StepResult conversations into datums, data set by data set."""

    render: RenderDataset

    def run(self, sources: MixtureRows, tokenizer: Tokenizer) -> tuple[MixtureData, Metrics]:
        found = {name: self._rendered(name, rows, tokenizer) for name, rows in sources.rows.items()}
        return MixtureData({name: data for name, (data, _) in found.items()}), Metrics(
            {
                key.replace("data/", f"data/{name}/", 1): value
                for name, (_, metrics) in found.items()
                for key, value in metrics.items()
            }
        )

    def _rendered(
        self, name: str, rows: Sequence[Conversation], tokenizer: Tokenizer
    ) -> tuple[TrainData, Metrics]:
        try:
            return self.render.run(TrainRows(rows), tokenizer)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error

    def preview(self, sources: MixtureRows, tokenizer: Tokenizer) -> MixtureData:
        return self.run(sources, tokenizer)[0]


class MixtureBatches(Stage):
    """`steps` batches of `size` datums, of each data set its share by weight, as nearly as whole
    datums can be.

    The shares hold, to about a datum, at every moment: the next datum is from the data set that is
    furthest behind. Each data set is gone through in passes, in an order of each pass's own.
    Weights of a batch are divided by their sum, so that the loss is a mean over its trained tokens,
    in nats.
    """

    weights: MixtureWeights
    size: int
    steps: int
    seed: int = 0

    def run(self, mixed: MixtureData) -> Iterable[MixtureBatch]:
        return _Drawn(self, mixed.sources, interleave(self.weights, self.size * self.steps))

    def preview(self, mixed: MixtureData, price: Price | None = None) -> tuple[Table, Table]:
        order, rows, tokens = interleave(self.weights, self.size * self.steps), [], 0.0
        for name, data in mixed.sources.items():
            taken, each = order.count(name), data.counts.tokens / len(data.data)
            tokens += taken * each
            rows.append(
                (
                    name,
                    f"{taken / len(order):.1%}",
                    f"{taken:,}",
                    f"{taken / len(data.data):.2f}",
                    f"{taken * each:,.0f}",
                )
            )
        return (
            Table(
                "Mixture",
                ("data set", "share", "datums read", "passes", "tokens, about"),
                tuple(rows),
            ),
            Table(
                "Steps",
                ("what", "count"),
                tuple(token_cost_rows("tokens read in all", round(tokens), "about ", price)),
            ),
        )


def interleave(weights: MixtureWeights, count: int) -> list[str]:
    """Which data set each of so many datums is from; raises ConfigError for weights that are none."""
    if wrong := [name for name, weight in weights.items() if not 0 < weight < float("inf")]:
        raise ConfigError(
            f"mixture.{wrong[0]}={weights[wrong[0]]} must be more than 0; leave a data set out "
            "that is "
            "not to be trained on"
        )
    names, wanted = list(weights), np.array(list(weights.values()), np.float64)
    wanted /= wanted.sum()
    taken, found = np.zeros(len(names)), []
    for done in range(1, count + 1):
        at = int(np.argmax(wanted * done - taken))
        taken[at] += 1
        found.append(names[at])
    return found


@dataclass(frozen=True)
class _Drawn:
    """Batches made when they are asked for."""

    how: MixtureBatches
    sources: Mapping[str, TrainData]
    order: Sequence[str]  # where each datum of the run is from

    def __len__(self) -> int:
        return self.how.steps

    def __iter__(self) -> Iterator[MixtureBatch]:
        drawing = {
            name: self._passes(at, data.data)
            for at, (name, data) in enumerate(self.sources.items())
        }
        for start in range(0, len(self.order), self.how.size):
            names = tuple(self.order[start : start + self.how.size])
            yield MixtureBatch(normalise_weights([next(drawing[name]) for name in names]), names)

    def _passes(self, at: int, data: Sequence[Datum]) -> Iterator[Datum]:
        number = 0
        while True:
            for index in (
                np.random.default_rng([self.how.seed, at, number]).permutation(len(data)).tolist()
            ):
                yield data[index]
            number += 1


class UnpackMixture(Stage):
    """The batch as those read it who do not ask where it is from."""

    def run(self, mixed: MixtureBatch) -> tuple[Batch, BatchSources]:
        return Batch(mixed.data), BatchSources(mixed.sources)


class ReportSourceLosses(Stage):
    """Publish the loss of each data set in the batch: the mean over its trained tokens, in nats."""

    def run(self, batch: Batch, origins: BatchSources, output: LossOutput) -> Metrics:
        # of losses, and of weights
        sums = {source: np.zeros(2) for source in dict.fromkeys(origins.sources)}
        for datum, source, nats in zip(batch.data, origins.sources, output.logprobs, strict=True):
            weights = datum.loss_inputs["weights"].astype(np.float64)
            sums[source] += -(nats.astype(np.float64) @ weights), weights.sum()
        return Metrics(
            {f"loss/{source}": float(loss / weight) for source, (loss, weight) in sums.items()}
        )

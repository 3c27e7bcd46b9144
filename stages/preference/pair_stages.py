"""Stages for pairs: reference log-probabilities, batches and held-out accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from kitchen.ports import (
    BlobStore,
    ModelCatalog,
    Tokenizer,
    TrainingClient,
    TrainingSession,
    arrival,
)
from kitchen.stage import Need, Stage
from kitchen.statistics.intervals import clopper_pearson
from kitchen.types import Array, Batch, Datum, Floats, Loss, Metrics, Samples, Table
from stages.chat.render import TrainData
from stages.data.dataset import Epoch, shuffled_batches
from stages.evaluate.evaluation import HeldOutData
from stages.evaluate.kl import shown_number
from stages.evaluate.record import record_row
from stages.evaluate.reference import (
    PROMPT_LOGPROBS,
    check_logprobs,
    open_reference,
    score_sequences,
    verify_reference,
)
from stages.preference.comparisons import Pair, Pairs, RecordedPair, as_batch


@dataclass(frozen=True)
class PairLogprobs:
    """The reference model's log-probabilities of all pairs, in the order of `Pairs.data`."""

    logprobs: tuple[Floats, ...]  # each (N,) nats


@dataclass(frozen=True)
class PairData:
    """Pairs to train on, with the reference model's log-probabilities, if there is one."""

    data: tuple[Pair, ...]


@dataclass(frozen=True)
class HeldOutPairs:
    """Held-out pairs by the name of their set, with the reference model's log-probabilities."""

    sets: Mapping[str, tuple[Pair, ...]]
    items: Mapping[str, tuple[RecordedPair, ...]]


class RankingLoss(Loss, Protocol):
    """A loss on pairs that says by how much it ranks the first datum of each above the second."""

    def margins(self, data: Sequence[Datum], logprobs: Sequence[Floats], /) -> Array:
        """Return the margins, (pairs,); above 0 for a pair that is ranked as labelled."""
        ...


# for data.Epochs(...).using(PAIRS): passes over pairs instead of datums
PAIRS: Mapping[Any, Any] = MappingProxyType({TrainData: PairData})


class PrecomputeReferenceLogprobs(Stage):
    """Compute the reference model's log-probabilities of all pairs; a resumed run reuses them.

    The reference model must have the same tokenizer as the model that is trained.
    """

    memoize = True
    reference: str  # a name of weights
    model: str = ""  # the one that is trained, for a check before the run

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        pairs: Pairs,
        blobs: BlobStore | None = None,
    ) -> PairLogprobs:
        sequences = [np.append(datum.tokens, datum.targets[-1]) for datum in pairs.data()]
        reference = open_reference(self.reference, "reference", client, models, tokenizer, blobs)
        with closing(reference):
            logprobs = await score_sequences(reference, sequences)
        of_targets = tuple(sequence[1:] for sequence in logprobs)
        for values in of_targets:
            check_logprobs(values, f"reference={self.reference!r}")
        return PairLogprobs(of_targets)

    def verify(
        self,
        client: TrainingClient,
        models: ModelCatalog | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        verify_reference(self.reference, "reference", self.model, client, models, blobs)

    def needs(self) -> Iterable[Need]:
        return [PROMPT_LOGPROBS]


def reference_stages(reference: str, model: str, needed: bool) -> list[Stage]:
    """Return the stage that scores pairs under the reference model, if the loss needs it."""
    return [PrecomputeReferenceLogprobs(reference, model)] if needed else []


class AttachReferenceLogprobs(Stage):
    """Add the reference model's log-probabilities, if there is one, to the datums."""

    rows: int = 16  # pairs of each held-out set whose loss is measured during training

    def run(
        self, pairs: Pairs, reference: PairLogprobs | None = None
    ) -> tuple[PairData, HeldOutPairs, HeldOutData]:
        logprobs = iter(reference.logprobs) if reference else None

        def attach(datum: Datum) -> Datum:
            if logprobs is None:
                return datum
            return Datum(datum.tokens, {**datum.loss_inputs, "reference": next(logprobs)})

        def attach_to_all(data: Sequence[Pair]) -> tuple[Pair, ...]:
            return tuple((attach(chosen), attach(rejected)) for chosen, rejected in data)

        train = attach_to_all(pairs.train)
        held_out = {name: attach_to_all(data) for name, data in pairs.held_out.items()}
        measured: list[Pair] = []
        for data in held_out.values():
            measured += data[: self.rows]
        return PairData(train), HeldOutPairs(held_out, pairs.items), HeldOutData(as_batch(measured))


class ShuffledPairs(Stage):
    """Batches of `size` pairs in a random order for each epoch; the last may be smaller."""

    size: int
    seed: int = 0

    def run(self, pairs: PairData, epoch: Epoch) -> Iterable[Batch]:
        return shuffled_batches(pairs.data, epoch, self.size, self.seed, as_batch)


class EvaluatePairs(Stage):
    """Measure how often the trained weights rank held-out pairs, or answers, as labelled."""

    loss: RankingLoss  # its metrics include the sum "margin:sum"
    unit: str = "pair"  # "answer" for KTO

    async def run(
        self, session: TrainingSession, held_out: HeldOutPairs
    ) -> tuple[Metrics, Table, Samples]:
        metrics = Metrics()
        rows = []
        records: list[dict[str, Any]] = []
        for name, pairs in held_out.sets.items():
            batch = as_batch(pairs)
            output = await arrival(session.forward(batch, self.loss))
            margins = self.loss.margins(batch, output.logprobs).tolist()
            for (row, item), of_pair in zip(held_out.items[name], margins, strict=True):
                scores = {f"{self.unit}_accuracy": of_pair > 0, "margin": of_pair}
                records.append(record_row(item, name, row, scores, when="after"))
            count = len(pairs)
            margin = output.metrics["margin:sum"]
            accuracy = clopper_pearson(sum(of_pair > 0 for of_pair in margins), count)
            metrics |= {
                f"{name}/{self.unit}_accuracy": accuracy.estimate,
                f"{name}/margin": margin,
            }
            rows.append((name, str(count), accuracy.format(), shown_number(margin, 3)))
        columns = ("held-out set", f"{self.unit}s", "accuracy", "margin, beta times nats")
        table = Table(f"Held-out {self.unit}s, 95 % intervals", columns, tuple(rows))
        return metrics, table, Samples(tuple(records))

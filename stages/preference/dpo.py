"""Preference optimisation: its reference, its batches, and what it is measured by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from kitchen.artifacts.weights import find_weights
from kitchen.ports import (
    BlobStore,
    ModelCatalog,
    Tokenizer,
    TrainingClient,
    TrainingSession,
    arrival,
)
from kitchen.stage import Stage
from kitchen.statistics.intervals import wilson
from kitchen.types import Batch, Datum, Floats, Loss, Metrics, Table
from stages.data.dataset import Epoch, shuffled_batches
from stages.evaluate.evaluation import HeldOutData
from stages.evaluate.reference import open_reference, score_sequences
from stages.preference.comparisons import Pair, Pairs, as_batch


@dataclass(frozen=True)
class ReferenceLogprobs:
    """What the reference gives each token of all pairs, in the order of `Pairs.data`."""

    logprobs: tuple[Floats, ...]  # each (N,) nats


@dataclass(frozen=True)
class PairData:
    """Pairs with the reference's log-probabilities in them, if there is one."""

    data: tuple[Pair, ...]


@dataclass(frozen=True)
class HeldOutPairs:
    """The same, held out, by the name of their set."""

    sets: Mapping[str, tuple[Pair, ...]]


class ScoreReference(Stage):
    """Ask the reference once for its log-probabilities of all pairs; a resumed run finds them in
    the record.

    It must read the same tokens as the model that is trained.
    """

    memoize = True
    reference: str  # a name of weights

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        pairs: Pairs,
        blobs: BlobStore | None = None,
    ) -> ReferenceLogprobs:
        whole = [np.append(datum.tokens, datum.targets[-1]) for datum in pairs.data()]
        with closing(
            open_reference(self.reference, "reference", client, models, tokenizer, blobs)
        ) as reference:
            found = await score_sequences(reference, whole)
        return ReferenceLogprobs(tuple(one[1:] for one in found))

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.reference, client, blobs)


class JoinReference(Stage):
    """Put the reference's log-probabilities, where one was asked, into the datums."""

    rows: int = 16  # pairs of each held-out set that are measured along the way

    def run(
        self, pairs: Pairs, reference: ReferenceLogprobs | None = None
    ) -> tuple[PairData, HeldOutPairs, HeldOutData]:
        left = iter(reference.logprobs) if reference else None

        def known(datum: Datum) -> Datum:
            return datum if left is None else _with(datum, next(left))

        def joined(some: Sequence[Pair]) -> tuple[Pair, ...]:
            return tuple((known(one), known(other)) for one, other in some)

        train = joined(pairs.train)
        held = {name: joined(some) for name, some in pairs.held_out.items()}
        return (
            PairData(train),
            HeldOutPairs(held),
            HeldOutData(as_batch([pair for some in held.values() for pair in some[: self.rows]])),
        )


def _with(datum: Datum, reference: Floats) -> Datum:
    return Datum(datum.tokens, {**datum.loss_inputs, "reference": reference})


class ShuffledPairs(Stage):
    """Batches of `size` pairs in an order of this epoch's own; the last may be smaller."""

    size: int
    seed: int = 0

    def run(self, pairs: PairData, epoch: Epoch) -> Iterable[Batch]:
        return shuffled_batches(pairs.data, epoch, self.size, self.seed, as_batch)


class JudgePairs(Stage):
    """How often the trained weights judge held-out pairs, or answers, as they are labelled, set by
    set.
    """

    loss: Loss  # with the sums accuracy and margin
    what: str = "pair"

    async def run(self, session: TrainingSession, held_out: HeldOutPairs) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), []
        for name, pairs in held_out.sets.items():
            found = (await arrival(session.forward(as_batch(pairs), self.loss))).metrics
            count, margin = len(pairs), found["margin:sum"]
            right = round(found["accuracy:sum"] * count)  # the shares of the pairs are float32
            low, high = wilson(right, count)
            metrics |= {f"{name}/{self.what}_accuracy": right / count, f"{name}/margin": margin}
            rows.append(
                (name, str(count), f"{right / count:.3f} [{low:.3f}, {high:.3f}]", f"{margin:.3f}")
            )
        columns = ("held-out set", f"{self.what}s", "accuracy", "margin, beta times nats")
        return metrics, Table(f"Held-out {self.what}s, 95 % intervals", columns, tuple(rows))

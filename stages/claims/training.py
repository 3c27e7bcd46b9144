"""Training on claims: rendering, batches, and the citation penalty beside the cross-entropy."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from kitchen.errors import DataError, check_name
from kitchen.ports import Done, Future, Tokenizer, TrainingClient, TrainingSession, start
from kitchen.progress import Progress
from kitchen.stage import Need, Stage
from kitchen.types import Datum, LossOutput, Metrics, OptimStepResult, Table
from stages.chat.render import RenderCounts, RenderDataset, TrainData, render_row
from stages.chat.token_cost import EpochSize
from stages.chat.token_table import MarkedTokens, token_table
from stages.claims.loading import HeldOutClaims, TrainClaims
from stages.claims.negatives import penalty_datum, wrong_citation
from stages.claims.rows import ClaimRow
from stages.claims.token_weights import BY_LINE, UNIFORM, LineWeights, weight_datum
from stages.data.dataset import Epoch, normalise_weights, shuffled_groups
from stages.evaluate.evaluation import HeldOutData
from stages.train.optim import LearningRate, summed_metrics

WeightsName = Literal["line_start", "by_line", "uniform"]
PenaltyName = Literal["unlikelihood", "none"]
WEIGHTS: Mapping[str, LineWeights] = MappingProxyType(
    {"line_start": LineWeights(), "by_line": BY_LINE, "uniform": UNIFORM}
)


@dataclass(frozen=True)
class TokenWeights:
    """Loss weights of an answer's tokens: a named choice, and values that replace some of its."""

    # line_start weights decisions: 4 for the start of a line and the ids of documents, 15 for
    # supports and refutes, 1 for the rest; by_line: 5 for the line of CLAIM[c1], 2 for other
    # claims, 1 for relations; uniform: 1
    kind: WeightsName = "line_start"
    claim: NonNegativeFloat | None = None  # the line of CLAIM[c1]; null for the value of `kind`
    evidence: NonNegativeFloat | None = None  # lines of other claims; null as for claim
    relation: NonNegativeFloat | None = None  # lines of relations; null as for claim
    line_start: NonNegativeFloat | None = None  # CLAIM[ and RELATION; null as for claim
    document: NonNegativeFloat | None = None  # ids of cited documents; null as for claim
    verb: NonNegativeFloat | None = None  # supports and refutes; null as for claim
    end: NonNegativeFloat | None = None  # stop tokens; null as for claim

    def __post_init__(self) -> None:
        check_name("token_weights.kind", self.kind, get_args(WeightsName))

    @property
    def by_line(self) -> LineWeights:
        """The weights by line and part."""
        values = {name: value for name, value in vars(self).items() if name != "kind"}
        given = {name: value for name, value in values.items() if value is not None}
        return replace(WEIGHTS[self.kind], **given)


@dataclass(frozen=True)
class CitationPenalty:
    """Penalty on answers that cite a document which the prompt lacks."""

    # unlikelihood: the probability of the tokens of a wrong document id; none: no penalty
    kind: PenaltyName = "unlikelihood"
    weight: NonNegativeFloat = 5.0  # weight of the mean penalty of a batch; 0 for none
    # rows of a batch that get a wrong citation, drawn anew at every step; null for all
    rows: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_name("penalty.kind", self.kind, get_args(PenaltyName))

    @property
    def active(self) -> bool:
        return self.kind != "none" and self.weight > 0


@dataclass(frozen=True)
class ClaimDatum:
    """A row of claims with its datum."""

    row: ClaimRow
    datum: Datum


@dataclass(frozen=True)
class ClaimData:
    """Rendered claims to train on, and the ids of all documents in their prompts."""

    data: tuple[ClaimDatum, ...]
    documents: tuple[str, ...]


@dataclass(frozen=True)
class ClaimBatch:
    """The rows and datums of one optimiser step."""

    rows: tuple[ClaimRow, ...]
    data: tuple[Datum, ...]


@dataclass(frozen=True)
class PenaltyOutput:
    """The citation penalty of a batch."""

    negatives: int  # rows with a wrong citation
    tokens: int  # that the model read for them
    loss: float  # nats; what is added to the cross-entropy


# for data.Epochs(...).using(CLAIMS): passes over claims instead of datums
CLAIMS: Mapping[Any, Any] = MappingProxyType({TrainData: ClaimData})


class RenderClaims(Stage):
    """Render claims to datums whose tokens have the weights of their lines."""

    render: RenderDataset
    weights: TokenWeights = TokenWeights()
    held_out_rows: int = 16  # rows of each held-out set whose loss is measured during training

    def run(
        self, claims: TrainClaims, held_out: HeldOutClaims, tokenizer: Tokenizer
    ) -> tuple[ClaimData, HeldOutData, Metrics]:
        data, counts = self._rendered(claims.rows, tokenizer)
        measured: list[Datum] = []
        for rows in held_out.sets.values():
            answered = [row for row in rows if row.answer is not None]
            rendered, _ = self._rendered(answered[: self.held_out_rows], tokenizer)
            measured += [item.datum for item in rendered]
        documents = dict.fromkeys(chain.from_iterable(row.documents for row in claims.rows))
        rendered_claims = ClaimData(data, tuple(documents))
        return rendered_claims, HeldOutData(normalise_weights(measured)), counts.metrics()

    def preview(self, claims: TrainClaims, tokenizer: Tokenizer) -> tuple[EpochSize, Table, Table]:
        data, counts = self._rendered(claims.rows, tokenizer)
        first = [MarkedTokens.of_datum(data[0].datum)]
        size = EpochSize(counts.datums, "claims", counts.tokens)
        return size, token_table("The first datum", first, tokenizer), counts.table()

    def _rendered(
        self, rows: Sequence[ClaimRow], tokenizer: Tokenizer
    ) -> tuple[tuple[ClaimDatum, ...], RenderCounts]:
        rendered: list[ClaimDatum] = []
        counts = RenderCounts()
        weights = self.weights.by_line
        for row in rows:
            of_row = render_row(row.conversation(), tokenizer, self.render)
            counts += of_row.counts
            for datum in of_row.data:
                rendered.append(ClaimDatum(row, weight_datum(datum, tokenizer, weights)))
        if rows and not any(np.any(item.datum.loss_inputs["weights"]) for item in rendered):
            raise DataError(
                f"{rows[0].where}: no token of this row and of all others has a loss weight: "
                "raise rendering.max_tokens, or set token_weights above 0"
            )
        return tuple(rendered), counts


class ShuffledClaims(Stage):
    """Batches of `size` claims in a new order each epoch; the last batch may be smaller.

    The weights of a batch sum to 1, so that the cross-entropy is a weighted mean, in nats.
    """

    size: int
    seed: int = 0

    def run(self, claims: ClaimData, epoch: Epoch) -> Iterable[ClaimBatch]:
        return shuffled_groups(claims.data, epoch, self.size, self.seed, _collated)


def _collated(group: Sequence[ClaimDatum]) -> ClaimBatch:
    data = normalise_weights([item.datum for item in group])
    return ClaimBatch(tuple(item.row for item in group), data)


class ForwardBackwardClaims(Stage):
    """Submit a batch for the gradients of the cross-entropy and of the citation penalty.

    The wrong citations are drawn from the seed, the step and the row, so that a resumed run draws
    the same ones.
    """

    penalty: CitationPenalty
    render: RenderDataset
    seed: int = 0

    def run(
        self,
        session: TrainingSession,
        tokenizer: Tokenizer,
        claims: ClaimData,
        batch: ClaimBatch,
        progress: Progress,
    ) -> tuple[Future[LossOutput], Future[PenaltyOutput]]:
        output = session.forward_backward(batch.data, "cross_entropy")
        negatives = self.negatives(batch, claims, tokenizer, progress)
        if not negatives:
            return output, Done(PenaltyOutput(0, 0, 0.0))
        penalised = session.forward_backward(negatives, "importance_sampling")
        return output, start(_penalty_output(penalised, negatives))

    def negatives(
        self, batch: ClaimBatch, claims: ClaimData, tokenizer: Tokenizer, progress: Progress
    ) -> list[Datum]:
        """Return the datums of the penalty, whose losses sum to the weighted mean of the rows."""
        if not self.penalty.active:
            return []
        data: list[Datum] = []
        for row in batch.rows:
            rng = random.Random(f"{self.seed} {progress.step} {row.where}")
            wrong = wrong_citation(row, claims.documents, rng)
            if wrong is not None and len(data) != self.penalty.rows:
                datum = penalty_datum(row, wrong, tokenizer, self.render, self.penalty.weight)
                data += [datum] if datum is not None else []
        return [_scaled(datum, 1 / len(data)) for datum in data]

    def needs(self) -> Iterable[Need]:
        losses = ["cross_entropy", *(["importance_sampling"] if self.penalty.active else [])]
        return [Need(TrainingClient, f"loss {loss}") for loss in losses]


def _scaled(datum: Datum, factor: float) -> Datum:
    advantages = (datum.loss_inputs["advantages"] * factor).astype(np.float32)
    return Datum(datum.tokens, {**datum.loss_inputs, "advantages": advantages})


async def _penalty_output(future: Future[LossOutput], data: Sequence[Datum]) -> PenaltyOutput:
    metrics = summed_metrics((await future).metrics)
    return PenaltyOutput(len(data), sum(len(datum.tokens) for datum in data), metrics["loss"])


class ReportClaimStep(Stage):
    """Report both losses of a batch, the optimiser's metrics, the learning rate and tokens."""

    weight: float  # of the penalty

    def run(
        self,
        batch: ClaimBatch,
        output: LossOutput,
        penalty: PenaltyOutput,
        stepped: OptimStepResult,
        rate: LearningRate,
    ) -> Metrics:
        trained = [np.count_nonzero(datum.loss_inputs["weights"]) for datum in batch.data]
        metrics = Metrics(
            {
                **stepped.metrics,
                **summed_metrics(output.metrics),
                "learning_rate": rate.value,
                "tokens": float(sum(len(datum.tokens) for datum in batch.data) + penalty.tokens),
                "trained_tokens": float(sum(trained)),
            }
        )
        if penalty.negatives:
            metrics["penalty"] = penalty.loss
            metrics["negatives"] = float(penalty.negatives)
            metrics["wrong_citation_prob"] = penalty.loss / self.weight
        return metrics

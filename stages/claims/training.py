"""Training on claims: rendering, batches, and the citation penalty beside the cross-entropy."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from kitchen.errors import ConfigError, DataError, check_name
from kitchen.ports import Done, Future, Tokenizer, TrainingClient, TrainingSession, start
from kitchen.progress import Progress
from kitchen.stage import Need, Stage
from kitchen.types import Batch, Datum, LossOutput, Metrics, OptimStepResult, Table
from stages.chat.render import RenderCounts, RenderDataset, TrainData, render_row
from stages.chat.token_cost import EpochSize
from stages.chat.token_table import MarkedTokens, token_table
from stages.claims.loading import HeldOutClaims, TrainClaims
from stages.claims.negatives import WrongCitation, penalty_datum, preference_pair, wrong_citation
from stages.claims.rows import ClaimRow
from stages.claims.token_weights import BY_LINE, UNIFORM, LineWeights, weight_datum
from stages.data.dataset import Epoch, normalise_weights, shuffled_groups
from stages.evaluate.evaluation import HeldOutData
from stages.evaluate.reference import OpenReference, Reference, check_logprobs, score_sequences
from stages.preference.dpo_losses import PairLoss
from stages.train.optim import LearningRate, summed_metrics

WeightsName = Literal["line_start", "by_line", "uniform"]
PenaltyName = Literal["unlikelihood", "dpo", "none"]
WEIGHTS: Mapping[str, LineWeights] = MappingProxyType(
    {"line_start": LineWeights(), "by_line": BY_LINE, "uniform": UNIFORM}
)


@dataclass(frozen=True)
class TokenWeights:
    """Loss weights of an answer's tokens: a named choice, and values that replace some of its."""

    # line_start weights decisions: 4 for the start of a line with the line break before it, for
    # the end and for the ids of documents, 15 for supports and refutes, 1 for the rest; by_line: 5
    # for the line of CLAIM[c1], 2 for other claims, 1 for relations; uniform: 1
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

    # unlikelihood: the probability of a wrong document id; dpo: the loss of DPO on
    # the right id and the wrong one, relative to the initial weights; none: no penalty
    kind: PenaltyName = "unlikelihood"
    weight: NonNegativeFloat = 5.0  # weight of the mean penalty of a batch; 0 for none
    # rows of a batch that get a wrong citation, drawn anew at every step; null for all
    rows: PositiveInt | None = None
    beta: PositiveFloat | None = None  # with kind=dpo, scale of the rewards; null for 0.1

    def __post_init__(self) -> None:
        check_name("penalty.kind", self.kind, get_args(PenaltyName))
        if self.beta is not None and self.kind != "dpo":
            raise ConfigError(
                f"penalty.beta has no effect with penalty.kind={self.kind}: set penalty.kind=dpo, "
                "or leave beta out"
            )

    @property
    def active(self) -> bool:
        """True if there is a penalty."""
        return self.kind != "none" and self.weight > 0

    @property
    def loss(self) -> str | PairLoss:
        """The loss of the negatives."""
        return PairLoss("sigmoid", self.beta) if self.kind == "dpo" else "importance_sampling"


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

    datums: int  # wrong citations; with dpo, right ones too
    tokens: int  # that the model read for them
    loss: float  # nats; what is added to the cross-entropy


# for STAGE(...).using(CLAIMS): claims instead of datums
CLAIMS: Mapping[Any, Any] = MappingProxyType({TrainData: ClaimData, Batch: ClaimBatch})


class RenderClaims(Stage):
    """Render claims to datums whose tokens have the weights of their lines."""

    render: RenderDataset
    weights: TokenWeights = TokenWeights()
    # rows of each held-out set whose loss is measured during training; 0 if it is not measured
    held_out_rows: int = 16

    def run(
        self, claims: TrainClaims, held_out: HeldOutClaims, tokenizer: Tokenizer
    ) -> tuple[ClaimData, HeldOutData, Metrics]:
        data, counts = self._rendered(claims.rows, tokenizer)
        measured: list[Datum] = []
        for rows in held_out.sets.values():
            answered = [row for row in rows if row.answer is not None]
            rendered, _ = self._rendered(answered[: self.held_out_rows], tokenizer)
            measured += [item.datum for item in rendered]
        if self.held_out_rows and not measured:
            raise DataError(
                "no held-out claim has evidence, so no held-out loss can be measured: set "
                "eval_every=0, or hold out other claims"
            )
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

    The wrong citations are drawn from the seed, the step and the content of the row, so that a
    resumed run draws the same ones, and so does a run on a copy of the data.
    """

    penalty: CitationPenalty
    render: RenderDataset
    seed: int = 0

    async def run(
        self,
        session: TrainingSession,
        tokenizer: Tokenizer,
        claims: ClaimData,
        batch: ClaimBatch,
        progress: Progress,
        reference: Reference | None = None,
    ) -> tuple[Future[LossOutput], Future[PenaltyOutput]]:
        output = session.forward_backward(batch.data, "cross_entropy")
        negatives = self.negatives(batch, claims, tokenizer, progress)
        if not negatives:
            return output, Done(PenaltyOutput(0, 0, 0.0))
        if self.penalty.kind == "dpo":
            if reference is None:
                raise ConfigError("penalty.kind=dpo needs a reference model: add OpenReference")
            negatives = await _with_reference(negatives, reference)
        penalised = session.forward_backward(negatives, self.penalty.loss)
        return output, start(_penalty_output(penalised, negatives))

    def negatives(
        self, batch: ClaimBatch, claims: ClaimData, tokenizer: Tokenizer, progress: Progress
    ) -> list[Datum]:
        """Return the datums of the penalty, whose losses sum to the weighted mean of the rows.

        With kind=dpo, the right and the wrong answers alternate.
        """
        if not self.penalty.active:
            return []
        found: list[tuple[Datum, ...]] = []
        for row in batch.rows:
            rng = random.Random(f"{self.seed} {progress.step} {row.content}")
            wrong = wrong_citation(row, claims.documents, rng)
            if wrong is None or len(found) == self.penalty.rows:
                continue
            if data := self._of_row(row, wrong, tokenizer):
                found.append(data)
        return [_scaled(datum, 1 / len(found)) for datum in chain.from_iterable(found)]

    def _of_row(
        self, row: ClaimRow, wrong: WrongCitation, tokenizer: Tokenizer
    ) -> tuple[Datum, ...]:
        """Return the datums of one row; none if it is truncated before the id."""
        options = row, wrong, tokenizer, self.render, self.penalty.weight
        if self.penalty.kind == "dpo":
            return preference_pair(*options) or ()
        datum = penalty_datum(*options)
        return (datum,) if datum is not None else ()

    def needs(self) -> Iterable[Need]:
        needs = [Need(TrainingClient, "loss cross_entropy")]
        if self.penalty.active:
            loss = self.penalty.loss
            named = f"loss {loss}" if isinstance(loss, str) else "custom loss"
            needs.append(Need(TrainingClient, named))
        return needs


def penalty_reference(penalty: CitationPenalty, model: str) -> tuple[Stage, ...]:
    """Return the stage that opens the reference model, if the penalty needs one."""
    needs_reference = penalty.active and penalty.kind == "dpo"
    return (OpenReference(model),) if needs_reference else ()


async def _with_reference(data: Sequence[Datum], reference: Reference) -> list[Datum]:
    """Add the reference model's log-probabilities to datums."""
    sequences = [np.append(datum.tokens, datum.targets[-1]) for datum in data]
    logprobs = await score_sequences(reference, sequences)
    for of_datum in logprobs:
        check_logprobs(of_datum[1:], "the reference")
    return [
        Datum(datum.tokens, {**datum.loss_inputs, "reference": of_datum[1:]})
        for datum, of_datum in zip(data, logprobs, strict=True)
    ]


def _scaled(datum: Datum, factor: float) -> Datum:
    """Scale the loss of a datum."""
    name = "advantages" if "advantages" in datum.loss_inputs else "weights"
    scaled = (datum.loss_inputs[name] * factor).astype(np.float32)
    return Datum(datum.tokens, {**datum.loss_inputs, name: scaled})


async def _penalty_output(future: Future[LossOutput], data: Sequence[Datum]) -> PenaltyOutput:
    metrics = summed_metrics((await future).metrics)
    return PenaltyOutput(len(data), sum(len(datum.tokens) for datum in data), metrics["loss"])


class ReportClaimStep(Stage):
    """Report both losses of a batch, the optimiser's metrics, the learning rate and tokens."""

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
        if penalty.datums:
            metrics |= {"penalty": penalty.loss, "penalty_datums": float(penalty.datums)}
        return metrics

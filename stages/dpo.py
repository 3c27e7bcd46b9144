"""Direct preference optimisation: the loss, its reference, and what it is measured by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from kitchen.errors import ConfigError, check_name
from kitchen.ports import BlobStore, TrainingClient, TrainingSession, arrival
from kitchen.stage import Stage
from kitchen.types import Array, Batch, Datum, Floats, Metrics, Table
from kitchen.weights import find_weights
from stages.data import Epoch, shuffled
from stages.evaluation import HeldOutData
from stages.preferences import Pair, Pairs, as_batch
from stages.scoring import sampler_of, scores
from stages.statistics import wilson

PairLossName = Literal["sigmoid", "ipo", "hinge"]
PAIR_LOSSES: tuple[str, ...] = get_args(PairLossName)


@dataclass(frozen=True)
class PairLoss:
    """sum over pairs of w · f(h), h = log(pi / ref)(chosen) - log(pi / ref)(rejected), in nats; a kitchen.types.Loss.

    sigmoid: f = -log sigmoid(beta h) (Rafailov et al., 2023, arXiv:2305.18290, eq. 7), with label smoothing e
    -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h) (Mitchell, 2023, "A note on DPO with noisy preferences");
    ipo: f = (h - 1 / (2 beta))² (Azar et al., 2023, arXiv:2310.12036, eq. 17), over whole answers;
    hinge: f = max(0, 1 - beta h) (Zhao et al., 2023, arXiv:2305.10425, with beta h for their margin).
    To each, `imitation` adds so many times the mean of -log pi over the tokens of the chosen answer, w a pair (Pang et
    al., 2024, arXiv:2404.19733, eq. 1), without which both answers of a pair may become less likely.

    Reads of each datum "weights", w on the tokens of the answer and 0 elsewhere, and "reference", what the reference
    gives each token, nats. Datums are chosen and rejected by turns.
    """

    kind: PairLossName = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0  # the share of pairs that are taken to be the wrong way round
    imitation: float = 0.0  # weight of the cross-entropy of chosen answers
    group: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_name("loss", self.kind, PAIR_LOSSES)
        if not self.beta > 0:
            raise ConfigError(f"beta={self.beta} must be more than 0")
        if not self.imitation >= 0:
            raise ConfigError(f"imitation={self.imitation} must not be less than 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigError(f"label_smoothing={self.label_smoothing} must be from 0 to less than 0.5")
        if self.label_smoothing and self.kind != "sigmoid":
            raise ConfigError(f"label_smoothing is one of loss=sigmoid; with loss={self.kind} leave it at 0")

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]:
        masks = [datum.loss_inputs["weights"] != 0 for datum in data]
        weights = np.array([datum.loss_inputs["weights"].max() for datum in data[::2]], np.float64)  # (pairs,)
        ratios = np.array([_ratio(*each) for each in zip(data, logprobs, masks, strict=True)]).reshape(-1, 2)
        margins = self.beta * (ratios[:, 0] - ratios[:, 1])
        values, slopes = self._at(margins)
        nats = np.array([_mean_nats(*each) for each in zip(logprobs[::2], masks[::2], strict=True)])
        shares = self.imitation / np.array([mask.sum() for mask in masks[::2]])
        pushes = np.stack([weights * (slopes * self.beta - shares), -weights * slopes * self.beta], 1).ravel()
        gradients = [(push * mask).astype(np.float32) for push, mask in zip(pushes, masks, strict=True)]
        value = float(weights @ (values + self.imitation * nats))
        return value, gradients, {
            "loss:sum": value, "chosen_nats:sum": float(weights @ nats), "accuracy:sum": float(weights @ (margins > 0)),
            "margin:sum": float(weights @ margins), "chosen_reward:sum": float(weights @ ratios[:, 0] * self.beta),
            "rejected_reward:sum": float(weights @ ratios[:, 1] * self.beta)}

    def _at(self, margins: Array) -> tuple[Array, Array]:
        """(pairs,) f and its slope by beta h."""
        if self.kind == "hinge":
            return np.maximum(0.0, 1 - margins), np.where(margins < 1, -1.0, 0.0)
        if self.kind == "ipo":
            away = margins / self.beta - 1 / (2 * self.beta)
            return away**2, 2 * away / self.beta
        smooth = self.label_smoothing
        values = (1 - smooth) * np.logaddexp(0, -margins) + smooth * np.logaddexp(0, margins)
        return values, smooth - np.exp(-np.logaddexp(0, margins))  # sigmoid(-m) = exp(-log(1 + exp(m)))


def _ratio(datum: Datum, logprobs: Floats, mask: Array) -> float:
    """log(pi / ref) of an answer, nats."""
    return float((logprobs.astype(np.float64) - datum.loss_inputs["reference"])[mask].sum())


def _mean_nats(logprobs: Floats, mask: Array) -> float:
    """Cross-entropy of an answer, nats per token."""
    return -float(logprobs.astype(np.float64)[mask].mean())


@dataclass(frozen=True)
class ReferenceLogprobs:
    """What the reference gives each token of all pairs, in the order of `Pairs.data`."""

    logprobs: tuple[Floats, ...]  # each (N,) nats


@dataclass(frozen=True)
class PairData:
    """Pairs with the reference's log-probabilities in them."""

    data: tuple[Pair, ...]


@dataclass(frozen=True)
class HeldOutPairs:
    """The same, held out, by the name of their set."""

    sets: Mapping[str, tuple[Pair, ...]]


class ScoreReference(Stage):
    """Ask the reference once for its log-probabilities of all pairs; a resumed run finds them in the record."""

    kept = True
    reference: str  # a name of weights

    async def run(self, client: TrainingClient, pairs: Pairs, blobs: BlobStore | None = None) -> ReferenceLogprobs:
        whole = [np.append(datum.tokens, datum.targets[-1]) for datum in pairs.data()]
        with closing(sampler_of(self.reference, client, blobs)) as reference:
            found = await scores(reference, whole)
        return ReferenceLogprobs(tuple(one[1:] for one in found))

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.reference, client, blobs)


class JoinReference(Stage):
    """Put the reference's log-probabilities into the datums."""

    rows: int = 16  # pairs of each held-out set that are measured along the way

    def run(self, pairs: Pairs, reference: ReferenceLogprobs) -> tuple[PairData, HeldOutPairs, HeldOutData]:
        left = iter(reference.logprobs)

        def joined(some: Sequence[Pair]) -> tuple[Pair, ...]:
            return tuple((_with(one, next(left)), _with(other, next(left))) for one, other in some)

        train = joined(pairs.train)
        held = {name: joined(some) for name, some in pairs.held_out.items()}
        return PairData(train), HeldOutPairs(held), HeldOutData(
            as_batch([pair for some in held.values() for pair in some[: self.rows]]))


def _with(datum: Datum, reference: Floats) -> Datum:
    return Datum(datum.tokens, {**datum.loss_inputs, "reference": reference})


class ShuffledPairs(Stage):
    """Batches of `size` pairs in an order of this epoch's own; the last may be smaller."""

    size: int
    seed: int = 0

    def run(self, pairs: PairData, epoch: Epoch) -> Iterable[Batch]:
        return shuffled(pairs.data, epoch, self.size, self.seed, as_batch)


class JudgePairs(Stage):
    """How often the trained weights prefer the chosen answer more than the reference does, set by set."""

    loss: PairLoss

    async def run(self, session: TrainingSession, held_out: HeldOutPairs) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), []
        for name, pairs in held_out.sets.items():
            found = (await arrival(session.forward(as_batch(pairs), self.loss))).metrics
            count, margin = len(pairs), found["margin:sum"]
            right = round(found["accuracy:sum"] * count)  # the shares of the pairs are float32
            low, high = wilson(right, count)
            metrics |= {f"{name}/pair_accuracy": right / count, f"{name}/margin": margin}
            rows.append((name, str(count), f"{right / count:.3f} [{low:.3f}, {high:.3f}]", f"{margin:.3f}"))
        columns = ("held-out set", "pairs", "accuracy", "margin, beta times nats")
        return metrics, Table("Held-out pairs, 95 % intervals", columns, tuple(rows))

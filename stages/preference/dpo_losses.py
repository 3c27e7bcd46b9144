"""DPO and its variants: losses on pairs of a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, assert_never, get_args

import numpy as np

from kitchen.errors import ConfigError, check_name
from kitchen.types import Array, Datum, Floats

PairLossName = Literal["sigmoid", "ipo", "hinge", "simpo", "orpo"]
PAIR_LOSSES: tuple[str, ...] = get_args(PairLossName)
WITHOUT_REFERENCE = ("simpo", "orpo")
_BETAS: Mapping[str, float] = MappingProxyType({"simpo": 2.0})  # 0.1 elsewhere
# nats per token: likelier answers are clamped here, because their odds are unbounded
_LIKELIEST = -1e-4


@dataclass(frozen=True)
class PairLoss:
    """A custom loss on pairs: sum of w · f(h), h the chosen answer's score less the rejected's.

    With a reference model, the score is log(pi / ref) of the whole answer, nats:
    - sigmoid (DPO): f = -log sigmoid(beta h) (Rafailov et al., 2023, arXiv:2305.18290, eq. 7); with
      label smoothing e, f = -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h) (Mitchell, 2023,
      "A note on DPO with noisy preferences")
    - ipo: f = (h - 1 / (2 beta))² (Azar et al., 2023, arXiv:2310.12036, eq. 17)
    - hinge: f = max(0, 1 - beta h) (Zhao et al., 2023, arXiv:2305.10425, beta h for their margin)

    Without one, with m the mean of log pi over the tokens of the answer:
    - simpo: the score is m; f = -log sigmoid(beta h - target_margin) (Meng et al., 2024,
      arXiv:2405.14734, eq. 6)
    - orpo: the score is log(exp(m) / (1 - exp(m))); f = -beta log sigmoid(h) - m of the chosen
      answer (Hong et al., 2024, arXiv:2403.07691, eq. 6 and 7, beta for their lambda)

    `imitation` times -m of the chosen answer is added to f (Pang et al., 2024, arXiv:2404.19733,
    eq. 1), without which both answers of a pair may become less likely.

    Reads two loss inputs of each datum: "weights", which is w on the tokens of the answer and 0
    elsewhere, and "reference", the reference model's log-probability of each token, nats. Chosen
    and rejected datums alternate.
    """

    kind: PairLossName = "sigmoid"
    beta: float | None = None  # None for 0.1, and for 2 with simpo
    label_smoothing: float = 0.0  # assumed share of swapped pairs
    imitation: float = 0.0  # weight of the cross-entropy of chosen answers
    # of simpo: the margin by which beta h should exceed 0; None for half of beta
    target_margin: float | None = None
    group: ClassVar[int] = 2
    measures: ClassVar[tuple[str, ...]] = (  # names of the metrics
        "loss",
        "chosen_nats",
        "accuracy",
        "margin",
        "chosen_reward",
        "rejected_reward",
    )

    def __post_init__(self) -> None:
        check_name("loss", self.kind, PAIR_LOSSES)
        if not self.scale > 0:
            raise ConfigError(f"beta={self.beta} must be more than 0.")
        for name in ("imitation", "target_margin"):
            if not (getattr(self, name) or 0) >= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must not be less than 0.")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigError(
                f"label_smoothing={self.label_smoothing} must be at least 0 and less than 0.5."
            )
        for name, kind in (("label_smoothing", "sigmoid"), ("target_margin", "simpo")):
            if getattr(self, name) and self.kind != kind:
                raise ConfigError(
                    f"{name} is an option of loss={kind}; with loss={self.kind}, leave it out."
                )

    @property
    def scale(self) -> float:
        """The value of beta, or its default for this loss."""
        return _BETAS.get(self.kind, 0.1) if self.beta is None else self.beta

    @property
    def uses_reference(self) -> bool:
        """True if the scores are relative to a reference model."""
        return self.kind not in WITHOUT_REFERENCE

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]:
        masks = [datum.loss_inputs["weights"] != 0 for datum in data]
        # (pairs,)
        weights = np.array([datum.loss_inputs["weights"].max() for datum in data[::2]], np.float64)
        scores, score_grads = self._scores(data, logprobs, masks)
        differences = scores[:, 0] - scores[:, 1]
        values, grads = self._value_and_grad(differences)
        chosen = zip(logprobs[::2], masks[::2], strict=True)
        nats = np.array([_mean_nats(*answer) for answer in chosen])
        imitation = self.imitation + (self.kind == "orpo")
        imitation_grads = imitation / np.array([mask.sum() for mask in masks[::2]])
        by_chosen = grads * score_grads[:, 0] - imitation_grads
        by_rejected = -grads * score_grads[:, 1]
        token_grads = (weights * np.stack([by_chosen, by_rejected])).T.ravel()
        gradients = [
            (grad * mask).astype(np.float32) for grad, mask in zip(token_grads, masks, strict=True)
        ]
        value = float(weights @ (values + imitation * nats))
        rewards = self.scale * scores
        metrics = {
            "loss:sum": value,
            "chosen_nats:sum": float(weights @ nats),
            "accuracy:sum": float(weights @ (differences > 0)),
            "margin:sum": self.scale * float(weights @ differences),
            "chosen_reward:sum": float(weights @ rewards[:, 0]),
            "rejected_reward:sum": float(weights @ rewards[:, 1]),
        }
        return value, gradients, metrics

    def margins(self, data: Sequence[Datum], logprobs: Sequence[Floats], /) -> Array:
        """Return beta h of each pair, (pairs,); above 0 if the chosen answer scores higher."""
        masks = [datum.loss_inputs["weights"] != 0 for datum in data]
        scores, _ = self._scores(data, logprobs, masks)
        margins: Array = self.scale * (scores[:, 0] - scores[:, 1])
        return margins

    def _scores(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], masks: Sequence[Array]
    ) -> tuple[Array, Array]:
        """Return the scores and their derivatives, each (pairs, chosen and rejected)."""
        answers = zip(data, logprobs, masks, strict=True)
        scored = np.array([self._score(*answer) for answer in answers])
        scores, score_grads = scored.reshape(-1, 2, 2).transpose(2, 0, 1)
        return scores, score_grads

    def _score(self, datum: Datum, logprobs: Floats, mask: Array) -> tuple[float, float]:
        """Return the score of an answer, and its derivative by each token's log-probability."""
        if self.uses_reference:
            log_ratios = logprobs.astype(np.float64) - datum.loss_inputs["reference"]
            return float(log_ratios[mask].sum()), 1.0
        mean = -_mean_nats(logprobs, mask)
        share = 1 / float(mask.sum())
        if self.kind == "simpo":
            return mean, share
        clamped = min(mean, _LIKELIEST)
        complement = -float(np.expm1(clamped))  # 1 - exp(m)
        grad = share / complement if mean < _LIKELIEST else 0.0
        return clamped - float(np.log(complement)), grad

    def _value_and_grad(self, differences: Array) -> tuple[Array, Array]:
        """Return f of h, without m of orpo, and its derivative by h, both (pairs,)."""
        beta = self.scale
        margins = beta * differences
        if self.kind == "hinge":
            return np.maximum(0.0, 1 - margins), np.where(margins < 1, -beta, 0.0)
        if self.kind == "ipo":
            distance = differences - 1 / (2 * beta)
            return distance**2, 2 * distance
        if self.kind == "orpo":
            return beta * np.logaddexp(0, -differences), -beta * _sigmoid(-differences)
        smooth = self.label_smoothing
        if self.kind == "simpo":
            margins = margins - (beta / 2 if self.target_margin is None else self.target_margin)
        elif self.kind != "sigmoid":
            assert_never(self.kind)
        values = (1 - smooth) * np.logaddexp(0, -margins) + smooth * np.logaddexp(0, margins)
        return values, beta * (smooth - _sigmoid(-margins))


def _sigmoid(x: Array) -> Array:
    sigmoid: Array = np.exp(-np.logaddexp(0, -x))
    return sigmoid


def _mean_nats(logprobs: Floats, mask: Array) -> float:
    """Return the cross-entropy of an answer, nats per token."""
    return -float(logprobs.astype(np.float64)[mask].mean())

"""Losses on pairs of answers: the chosen one is to have a better score than the rejected one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, get_args

import numpy as np

from kitchen.errors import ConfigError, check_name
from kitchen.types import Array, Datum, Floats

PairLossName = Literal["sigmoid", "ipo", "hinge", "simpo", "orpo"]
PAIR_LOSSES: tuple[str, ...] = get_args(PairLossName)
WITHOUT_REFERENCE = ("simpo", "orpo")
_BETAS: Mapping[str, float] = MappingProxyType({"simpo": 2.0})  # 0.1 elsewhere
# nats per token: of likelier answers the odds count no further, for they have no end
_LIKELIEST = -1e-4


@dataclass(frozen=True)
class PairLoss:
    """sum over pairs of w · f(h), h the score of the chosen answer less that of the rejected; a
    kitchen.types.Loss.

    The score is log(pi / ref) of the answer, nats, in sigmoid: f = -log sigmoid(beta h) (Rafailov
    et al., 2023, arXiv:2305.18290, eq. 7), with label smoothing e -(1 - e) log sigmoid(beta h) - e
    log sigmoid(-beta h) (Mitchell, 2023, "A note on DPO with noisy preferences"); ipo: f = (h - 1 /
    (2 beta))² (Azar et al., 2023, arXiv:2310.12036, eq. 17), over whole answers; hinge: f = max(0,
    1 - beta h) (Zhao et al., 2023, arXiv:2305.10425, with beta h for their margin). Without a
    reference, with m the mean of log pi over the tokens of the answer, it is simpo: m; f = -log
    sigmoid(beta h - target_margin) (Meng et al., 2024, arXiv:2405.14734, eq. 6); orpo: log(exp(m) /
    (1 - exp(m))); f = -beta log sigmoid(h) - m of the chosen (Hong et al., 2024, arXiv:2403.07691,
    eq. 6 and 7, beta for their lambda). To each, `imitation` adds so many times -m of the chosen
    answer, w a pair (Pang et al., 2024, arXiv:2404.19733, eq. 1), without which both answers of a
    pair may become less likely.

    Reads of each datum "weights", w on the tokens of the answer and 0 elsewhere, and "reference",
    what the reference gives each token, nats. Datums are chosen and rejected by turns.
    """

    kind: PairLossName = "sigmoid"
    beta: float | None = None  # None: 0.1, for simpo 2
    label_smoothing: float = 0.0  # the share of pairs that are taken to be the wrong way round
    imitation: float = 0.0  # weight of the cross-entropy of chosen answers
    # of simpo: how far beta h should be above 0; None: half of beta
    target_margin: float | None = None
    group: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_name("loss", self.kind, PAIR_LOSSES)
        if not self.scale > 0:
            raise ConfigError(f"beta={self.beta} must be more than 0")
        for name in ("imitation", "target_margin"):
            if not (getattr(self, name) or 0) >= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must not be less than 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigError(
                f"label_smoothing={self.label_smoothing} must be from 0 to less than 0.5"
            )
        for name, where in (("label_smoothing", "sigmoid"), ("target_margin", "simpo")):
            if getattr(self, name) and self.kind != where:
                raise ConfigError(
                    f"{name} is one of loss={where}; with loss={self.kind} leave it out"
                )

    @property
    def scale(self) -> float:
        """beta, or what is usual."""
        return _BETAS.get(self.kind, 0.1) if self.beta is None else self.beta

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]:
        masks = [datum.loss_inputs["weights"] != 0 for datum in data]
        # (pairs,)
        weights = np.array([datum.loss_inputs["weights"].max() for datum in data[::2]], np.float64)
        scored = np.array([self._score(*each) for each in zip(data, logprobs, masks, strict=True)])
        # each (pairs, chosen and rejected)
        scores, moves = scored.reshape(-1, 2, 2).transpose(2, 0, 1)
        apart = scores[:, 0] - scores[:, 1]
        values, grads = self._at(apart)
        nats = np.array([_mean_nats(*each) for each in zip(logprobs[::2], masks[::2], strict=True)])
        imitation = self.imitation + (self.kind == "orpo")
        shares = imitation / np.array([mask.sum() for mask in masks[::2]])
        pushes = (
            weights * np.stack([grads * moves[:, 0] - shares, -grads * moves[:, 1]])
        ).T.ravel()
        gradients = [
            (push * mask).astype(np.float32) for push, mask in zip(pushes, masks, strict=True)
        ]
        value, rewards = float(weights @ (values + imitation * nats)), self.scale * scores
        return (
            value,
            gradients,
            {
                "loss:sum": value,
                "chosen_nats:sum": float(weights @ nats),
                "accuracy:sum": float(weights @ (apart > 0)),
                "margin:sum": self.scale * float(weights @ apart),
                "chosen_reward:sum": float(weights @ rewards[:, 0]),
                "rejected_reward:sum": float(weights @ rewards[:, 1]),
            },
        )

    def _score(self, datum: Datum, logprobs: Floats, mask: Array) -> tuple[float, float]:
        """The score of an answer, and d score / d logprob of each of its tokens."""
        if self.kind not in WITHOUT_REFERENCE:
            return float(
                (logprobs.astype(np.float64) - datum.loss_inputs["reference"])[mask].sum()
            ), 1.0
        mean, share = -_mean_nats(logprobs, mask), 1 / float(mask.sum())
        if self.kind == "simpo":
            return mean, share
        rest = -float(np.expm1(min(mean, _LIKELIEST)))  # 1 - exp(m)
        return min(mean, _LIKELIEST) - float(
            np.log(rest)
        ), share / rest if mean < _LIKELIEST else 0.0

    def _at(self, apart: Array) -> tuple[Array, Array]:
        """(pairs,) f of h, but for orpo's m, and its derivative."""
        beta = self.scale
        margins = beta * apart
        if self.kind == "hinge":
            return np.maximum(0.0, 1 - margins), np.where(margins < 1, -beta, 0.0)
        if self.kind == "ipo":
            away = apart - 1 / (2 * beta)
            return away**2, 2 * away
        if self.kind == "orpo":
            return beta * np.logaddexp(0, -apart), -beta * _sigmoid(-apart)
        smooth = self.label_smoothing
        if self.kind == "simpo":
            margins = margins - (beta / 2 if self.target_margin is None else self.target_margin)
        values = (1 - smooth) * np.logaddexp(0, -margins) + smooth * np.logaddexp(0, margins)
        return values, beta * (smooth - _sigmoid(-margins))


def _sigmoid(at: Array) -> Array:
    found: Array = np.exp(-np.logaddexp(0, -at))
    return found


def _mean_nats(logprobs: Floats, mask: Array) -> float:
    """Cross-entropy of an answer, nats per token."""
    return -float(logprobs.astype(np.float64)[mask].mean())

"""Direct reward optimisation over the tokens that a policy chose, and policy losses by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kitchen.backend.losses import find_loss
from kitchen.types import Datum, Floats, Loss


@dataclass(frozen=True)
class Dro:
    """-sum of lp · A - w beta / 2 · (lp - q)², as the named loss dro, but where w is not 0; a
    kitchen.types.Loss.

    Richemond et al., 2024 (arXiv:2405.19107), token by token. The named one pulls every token back
    to q, those of the prompt too, which nobody sampled. Reads of each datum "weights", w, what each
    token counts in the mean that A is part of; "advantages", A; and "logprobs", q, nats.
    """

    beta: float = 0.05
    group: ClassVar[int] = 1

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]:
        value, gradients = 0.0, list[Floats]()
        for datum, lp in zip(data, logprobs, strict=True):
            weights = datum.loss_inputs["weights"].astype(np.float64)
            worth = np.where(weights != 0, datum.loss_inputs["advantages"], 0.0)
            away = np.where(
                weights != 0, lp.astype(np.float64) - datum.loss_inputs["logprobs"], 0.0
            )
            value -= float(
                np.where(weights != 0, lp, 0.0) @ worth - 0.5 * self.beta * (weights @ away**2)
            )
            gradients.append((self.beta * weights * away - worth).astype(np.float32))
        return value, gradients, {"loss:sum": value}


def loss_of(name: str, options: Mapping[str, float]) -> tuple[str | Loss, Mapping[str, float]]:
    """A policy loss as ForwardBackward takes it; raises ConfigError for an option that is unknown."""
    return (Dro(find_loss(name, options)[1]["beta"]), {}) if name == "dro" else (name, options)

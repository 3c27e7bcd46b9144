"""Direct reward optimisation (DRO) over the sampled tokens, and policy losses by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kitchen.backend.losses import find_loss
from kitchen.types import Datum, Floats, Loss


@dataclass(frozen=True)
class Dro:
    """DRO, a custom loss: -sum of lp · A - w beta / 2 · (lp - q)² over the tokens whose w is not 0.

    Richemond et al., 2024 (arXiv:2405.19107), token by token. The built-in loss `dro` pulls every
    token back to q, even those of the prompt, which the policy did not sample. Reads three loss
    inputs of
    each datum: "weights", w, which sum to 1 over the sampled tokens of a batch; "advantages", A,
    divided by the number of these tokens; and "logprobs", q, nats.
    """

    beta: float = 0.05
    group: ClassVar[int] = 1

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]:
        value = 0.0
        gradients = list[Floats]()
        for datum, lp in zip(data, logprobs, strict=True):
            weights = datum.loss_inputs["weights"].astype(np.float64)
            sampled = weights != 0
            advantages = np.where(sampled, datum.loss_inputs["advantages"], 0.0)
            log_ratio = np.where(
                sampled, lp.astype(np.float64) - datum.loss_inputs["logprobs"], 0.0
            )
            gain = np.where(sampled, lp, 0.0) @ advantages
            value -= float(gain - 0.5 * self.beta * (weights @ log_ratio**2))
            gradients.append((self.beta * weights * log_ratio - advantages).astype(np.float32))
        return value, gradients, {"loss:sum": value}


def loss_of(name: str, options: Mapping[str, float]) -> tuple[str | Loss, Mapping[str, float]]:
    """Return a policy loss and its options for ForwardBackward; raises ConfigError."""
    if name == "dro":
        return Dro(find_loss(name, options)[1]["beta"]), {}
    return name, options

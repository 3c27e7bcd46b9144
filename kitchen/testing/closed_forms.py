"""A second implementation of the named losses, in plain arithmetic, to check the first against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from kitchen.types import Array

Inputs = Mapping[str, Array]
Pair = tuple[float, float]  # value, dvalue/dlogprob


def closed_form(
    loss: str, logprobs: Array, inputs: Inputs, **options: float
) -> tuple[Array, Array]:
    """Map (N,) log-probabilities and inputs to (N,) values and (N,) d value / d logprob."""
    token = FORMS[loss]
    pairs = [
        token(float(lp), {name: float(values[i]) for name, values in inputs.items()}, options)
        for i, lp in enumerate(logprobs)
    ]
    return np.array([value for value, _ in pairs]), np.array([grad for _, grad in pairs])


def _cross_entropy(lp: float, at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    return -lp * at["weights"], -at["weights"]


def _importance_sampling(lp: float, at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    ratio = math.exp(lp - at["logprobs"])
    return -ratio * at["advantages"], -ratio * at["advantages"]


def _ppo(lp: float, at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    low, high = options.get("clip_low_threshold", 0.8), options.get("clip_high_threshold", 1.2)
    ratio, advantage = math.exp(lp - at["logprobs"]), at["advantages"]
    if advantage > 0 and ratio > high:
        return -high * advantage, 0.0
    if advantage < 0 and ratio < low:
        return -low * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


def _cispo(lp: float, at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    low, high = options.get("clip_low_threshold", 0.0), options.get("clip_high_threshold", 4.0)
    weight = min(max(math.exp(lp - at["logprobs"]), low), high) * at["advantages"]
    return -weight * lp, -weight


def _dro(lp: float, at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    beta, away = options.get("beta", 0.05), lp - at["logprobs"]
    return -(lp * at["advantages"] - beta / 2 * away * away), -(at["advantages"] - beta * away)


FORMS: Mapping[str, Callable[[float, Mapping[str, float], Mapping[str, float]], Pair]] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
}

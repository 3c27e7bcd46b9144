"""A second implementation of the named losses, in plain arithmetic, to check the first one."""

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
    compute = CLOSED_FORMS[loss]
    pairs = []
    if loss == "gspo":
        inputs = {**inputs, "log_ratio": _mean_log_ratio(logprobs, inputs)}
    for i, lp in enumerate(logprobs):
        inputs_at = {name: float(values[i]) for name, values in inputs.items()}
        # an input named like an option replaces it at this token
        options_at = {**options, **{k: v for k, v in inputs_at.items() if k.startswith("clip_")}}
        pairs.append(compute(float(lp), inputs_at, options_at))
    return np.array([value for value, _ in pairs]), np.array([grad for _, grad in pairs])


def _cross_entropy(lp: float, inputs_at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    return -lp * inputs_at["weights"], -inputs_at["weights"]


def _importance_sampling(
    lp: float, inputs_at: Mapping[str, float], options: Mapping[str, float]
) -> Pair:
    ratio = math.exp(lp - inputs_at["logprobs"])
    return -ratio * inputs_at["advantages"], -ratio * inputs_at["advantages"]


def _ppo(lp: float, inputs_at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    low, high = options.get("clip_low_threshold", 0.8), options.get("clip_high_threshold", 1.2)
    ratio, advantage = math.exp(lp - inputs_at["logprobs"]), inputs_at["advantages"]
    if advantage > 0 and ratio > high:
        return -high * advantage, 0.0
    if advantage < 0 and ratio < low:
        return -low * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


def _cispo(lp: float, inputs_at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    low, high = options.get("clip_low_threshold", 0.0), options.get("clip_high_threshold", 4.0)
    weight = min(max(math.exp(lp - inputs_at["logprobs"]), low), high) * inputs_at["advantages"]
    return -weight * lp, -weight


def _mean_log_ratio(logprobs: Array, inputs: Inputs) -> Array:
    marked = [i for i, mark in enumerate(inputs["sequence_ratio_mask"]) if mark]
    ratios = [float(logprobs[i]) - float(inputs["logprobs"][i]) for i in marked]
    return np.full(len(logprobs), sum(ratios) / len(ratios))


def _gspo(lp: float, inputs_at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    low, high = (
        options.get("clip_low_threshold", 0.9997),
        options.get("clip_high_threshold", 1.0004),
    )
    ratio, advantage = math.exp(inputs_at["log_ratio"]), inputs_at["advantages"]
    if advantage > 0 and ratio > high:
        return -high * advantage, 0.0
    if advantage < 0 and ratio < low:
        return -low * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


def _dro(lp: float, inputs_at: Mapping[str, float], options: Mapping[str, float]) -> Pair:
    beta, log_ratio = options.get("beta", 0.05), lp - inputs_at["logprobs"]
    advantage = inputs_at["advantages"]
    value = -(lp * advantage - beta / 2 * log_ratio * log_ratio)
    return value, -(advantage - beta * log_ratio)


CLOSED_FORMS: Mapping[str, Callable[[float, Mapping[str, float], Mapping[str, float]], Pair]] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "gspo": _gspo,
    "dro": _dro,
}

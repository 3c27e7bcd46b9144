"""The named losses, token by token: their inputs, options, values and gradients.

Every loss here is a sum over tokens, so d loss / d logprob at each token determines its gradient:
an adapter computes log-probabilities, gets the gradients with respect to them from here, and
backpropagates those through the model. The formulas are those that the Tinker API documents for its
losses of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kitchen.errors import ConfigError, Diverged, did_you_mean
from kitchen.types import Array, Datum, Loss

Inputs = Mapping[str, Array]  # loss inputs of a datum, by name
Options = Mapping[str, float]
# value and d value / d logprob of each token, both of the shape of the targets
ValueAndGrads = tuple[Array, Array]


@dataclass(frozen=True)
class NamedLoss:
    """A loss by name: `compute` maps target logprobs (nats), inputs and options to values."""

    inputs: tuple[str, ...]  # beside target_tokens
    defaults: Options  # every option, with its default
    compute: Callable[[Array, Inputs, Options], ValueAndGrads]
    mask_input: str = ""  # the input that excludes a token from the loss where it is 0
    # returns the problem with the values of options; empty if there is none
    check: Callable[[Options], str] = lambda options: ""


def _cross_entropy(lp: Array, inputs: Inputs, options: Options) -> ValueAndGrads:
    weights = inputs["weights"]
    return np.where(weights == 0, 0.0, -lp * weights), -weights


def _importance_sampling(lp: Array, inputs: Inputs, options: Options) -> ValueAndGrads:
    value = -np.exp(lp - inputs["logprobs"]) * inputs["advantages"]
    return value, value


def _ppo(lp: Array, inputs: Inputs, options: Options) -> ValueAndGrads:
    """Schulman et al., 2017 (arXiv:1707.06347), eq. 7."""
    low, high = options["clip_low_threshold"], options["clip_high_threshold"]
    ratio = np.exp(lp - inputs["logprobs"])
    advantages = inputs["advantages"]
    clipped = np.clip(ratio, low, high) * advantages
    unclipped = ratio * advantages
    return -np.minimum(unclipped, clipped), np.where(unclipped <= clipped, -unclipped, 0.0)


def _cispo(lp: Array, inputs: Inputs, options: Options) -> ValueAndGrads:
    """MiniMax, 2025 (arXiv:2506.13585), eq. 4: the clipped ratio is a constant weight."""
    low, high = options["clip_low_threshold"], options["clip_high_threshold"]
    ratio = np.exp(lp - inputs["logprobs"])
    grad = -np.clip(ratio, low, high) * inputs["advantages"]
    return grad * lp, grad


def _dro(lp: Array, inputs: Inputs, options: Options) -> ValueAndGrads:
    """Richemond et al., 2024 (arXiv:2405.19107), with the mean over tokens left to the caller."""
    log_ratio = lp - inputs["logprobs"]
    advantages = inputs["advantages"]
    beta = options["beta"]
    value = -(lp * advantages - 0.5 * beta * log_ratio**2)
    return value, -(advantages - beta * log_ratio)


def _check_thresholds(options: Options) -> str:
    low, high = options["clip_low_threshold"], options["clip_high_threshold"]
    if 0 <= low <= high:
        return ""
    return (
        f"clip_low_threshold={low:g} and clip_high_threshold={high:g} bound a ratio of "
        "probabilities, so 0 <= clip_low_threshold <= clip_high_threshold must hold"
    )


def _check_beta(options: Options) -> str:
    beta = options["beta"]
    return "" if beta >= 0 else f"beta={beta:g} is negative; it must be at least 0"


_POLICY = ("logprobs", "advantages")
# A new loss also needs:
# - a second implementation in kitchen/testing/closed_forms.py, which the laws compare it with;
# - its name in PolicyLossName of stages/rl/policy_gradient.py, if `recipes.rl` is to offer it;
# - for servers that lack it, an entry in SERVER_CAPABILITIES of adapters/tinker/client.py; the
#   fake and the local adapter offer every loss here.
LOSSES: Mapping[str, NamedLoss] = {
    "cross_entropy": NamedLoss(("weights",), {}, _cross_entropy, mask_input="weights"),
    "importance_sampling": NamedLoss(_POLICY, {}, _importance_sampling, mask_input="advantages"),
    "ppo": NamedLoss(
        _POLICY,
        {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        _ppo,
        mask_input="advantages",
        check=_check_thresholds,
    ),
    "cispo": NamedLoss(
        _POLICY,
        {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
        _cispo,
        mask_input="advantages",
        check=_check_thresholds,
    ),
    "dro": NamedLoss(_POLICY, {"beta": 0.05}, _dro, check=_check_beta),
}


def find_loss(name: str, options: Options | None = None) -> tuple[NamedLoss, Options]:
    """Return a loss and its options with defaults filled in.

    Raises ConfigError for an unknown name or option, and for an invalid value.
    """
    if name not in LOSSES:
        raise ConfigError(f"loss {name!r} is unknown here; {did_you_mean(name, LOSSES)}")
    loss = LOSSES[name]
    for option in options or {}:
        if option not in loss.defaults:
            raise ConfigError(
                f"loss {name!r} has no option {option!r}; {did_you_mean(option, loss.defaults)}"
            )
    complete = {**loss.defaults, **(options or {})}
    if problem := loss.check(complete):
        raise ConfigError(f"loss {name!r}: {problem}")
    return loss, complete


def value_and_logprob_grads(
    name: str, options: Options | None, datum: Datum, logprobs: Array
) -> ValueAndGrads:
    """Return value and d value / d logprob of each token, 0 where the loss does not score it.

    Both are float64, of the shape of the targets.
    """
    loss, options = find_loss(name, options)
    lp = np.asarray(logprobs, np.float64)
    inputs = {field: np.asarray(datum.loss_inputs[field], np.float64) for field in loss.inputs}
    mask = like_targets(_has_gradient(name, datum), lp)
    # overflow at masked tokens is harmless; elsewhere adapters reject values that are not finite
    with np.errstate(over="ignore", invalid="ignore"):
        value, grads = loss.compute(np.where(mask, lp, 0.0), inputs, options)
    return np.where(mask, value, 0.0), np.where(mask, grads, 0.0)


def named_loss_grads(
    name: str, options: Options | None, data: Sequence[Datum], logprobs: Sequence[Array]
) -> tuple[Mapping[str, float], Sequence[Array]]:
    """Return the summed loss as "loss:sum", and d loss / d logprob of each datum.

    Raises Diverged, which names the datum, if a value is not finite.
    """
    pairs = [
        value_and_logprob_grads(name, options, datum, of_datum)
        for datum, of_datum in zip(data, logprobs, strict=True)
    ]
    for index, pair in enumerate(pairs):
        check_finite(index, len(data), *pair)
    total = float(sum(value.sum() for value, _ in pairs))
    return {"loss:sum": total}, [grads for _, grads in pairs]


def check_finite(index: int, count: int, *arrays: Array) -> None:
    """Raise Diverged, which names the datum, if a value is not finite."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise Diverged(
            f"datum {index} of {count}: its loss or its gradient is not a finite number; no step "
            "was taken. Lower the learning rate, or check the data"
        )


def scored_positions(loss: str | Loss, datum: Datum) -> Array:
    """Return an (N,) mask of the positions whose log-probabilities a backend must compute.

    These are the positions where the loss can have a gradient, and all sampled tokens, whatever
    their advantage, because the KL from the sampling policy is measured on them too.
    """
    mask = _has_gradient(loss, datum)
    if isinstance(loss, str) and "logprobs" in LOSSES[loss].inputs:
        return np.asarray(mask | _nonzero(datum.loss_inputs["logprobs"]))
    return mask


def like_targets(mask: Array, targets: Array) -> Array:
    """Broadcast an (N,) mask to the shape of targets, (N,) or (N, K)."""
    return np.broadcast_to(mask.reshape(-1, *[1] * (targets.ndim - 1)), targets.shape)


def _has_gradient(loss: str | Loss, datum: Datum) -> Array:
    """Return an (N,) mask of the positions where the loss can have a gradient."""
    field = LOSSES[loss].mask_input if isinstance(loss, str) else "weights"
    if field not in datum.loss_inputs:
        return np.ones(len(datum.tokens), bool)
    return _nonzero(datum.loss_inputs[field])


def _nonzero(values: Array) -> Array:
    """Return an (N,) mask of the positions where (N,) or (N, K) values are not all 0."""
    nonzero = np.asarray(np.asarray(values) != 0)
    return nonzero if nonzero.ndim == 1 else np.asarray(nonzero.any(-1))

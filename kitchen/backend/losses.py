"""The named losses, token by token: their inputs, options, values and gradients.

Every loss here is a sum over tokens, so d loss / d logprob at each token determines its gradient:
an adapter computes log-probabilities, gets the gradients with respect to them from here, and
backpropagates those through the model. A token's value depends on that token alone, unless the loss
is marked as `per_sequence`: an adapter must then compute all tokens of a datum first. The formulas
are those that the Tinker API documents for its losses of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kitchen.errors import ConfigError, Diverged, did_you_mean
from kitchen.types import Array, Datum, Loss

Inputs = Mapping[str, Array]  # loss inputs of a datum, by name
Options = Mapping[str, float]
OptionValues = Mapping[str, float | Array]  # an array where a datum gives the option token by token
# value and d value / d logprob of each token, both of the shape of the targets
ValueAndGrads = tuple[Array, Array]


@dataclass(frozen=True)
class NamedLoss:
    """A loss by name: `compute` maps target logprobs (nats), inputs and options to values."""

    inputs: tuple[str, ...]  # beside target_tokens
    defaults: Options  # every option, with its default
    compute: Callable[[Array, Inputs, OptionValues], ValueAndGrads]
    mask_input: str = ""  # the input that excludes a token from the loss where it is 0
    # options that a datum may give token by token, as inputs of the same name
    per_token: tuple[str, ...] = ()
    # whether a token's value depends on the other tokens that the input `reads` marks
    per_sequence: bool = False
    reads: str = ""
    # return the problem with the values of options or inputs; empty if there is none
    check: Callable[[OptionValues], str] = lambda options: ""
    check_inputs: Callable[[Inputs], str] = lambda inputs: ""


def _cross_entropy(lp: Array, inputs: Inputs, options: OptionValues) -> ValueAndGrads:
    weights = inputs["weights"]
    return np.where(weights == 0, 0.0, -lp * weights), -weights


def _importance_sampling(lp: Array, inputs: Inputs, options: OptionValues) -> ValueAndGrads:
    value = -np.exp(lp - inputs["logprobs"]) * inputs["advantages"]
    return value, value


def _ppo(lp: Array, inputs: Inputs, options: OptionValues) -> ValueAndGrads:
    """Schulman et al., 2017 (arXiv:1707.06347), eq. 7."""
    low, high = options["clip_low_threshold"], options["clip_high_threshold"]
    ratio = np.exp(lp - inputs["logprobs"])
    advantages = inputs["advantages"]
    clipped = np.clip(ratio, low, high) * advantages
    unclipped = ratio * advantages
    return -np.minimum(unclipped, clipped), np.where(unclipped <= clipped, -unclipped, 0.0)


def _cispo(lp: Array, inputs: Inputs, options: OptionValues) -> ValueAndGrads:
    """MiniMax, 2025 (arXiv:2506.13585), eq. 4: the clipped ratio is a constant weight."""
    low, high = options["clip_low_threshold"], options["clip_high_threshold"]
    ratio = np.exp(lp - inputs["logprobs"])
    grad = -np.clip(ratio, low, high) * inputs["advantages"]
    return grad * lp, grad


def _gspo(lp: Array, inputs: Inputs, options: OptionValues) -> ValueAndGrads:
    """Zheng et al., 2025 (arXiv:2507.18071), eq. 13 (GSPO-token), as a sum over tokens.

    Every token has the ratio of the sequence, which is the geometric mean of the ratios of the
    tokens that `sequence_ratio_mask` marks, with the gradient of its own log-probability.
    """
    low, high = options["clip_low_threshold"], options["clip_high_threshold"]
    in_ratio = inputs["sequence_ratio_mask"] != 0
    advantages = inputs["advantages"]
    if not in_ratio.any():  # then all advantages are 0
        return np.zeros_like(lp), np.zeros_like(lp)
    ratio = np.exp((lp - inputs["logprobs"])[in_ratio].mean())
    clipped = np.clip(ratio, low, high) * advantages
    unclipped = ratio * advantages
    return -np.minimum(unclipped, clipped), np.where(unclipped <= clipped, -unclipped, 0.0)


def _dro(lp: Array, inputs: Inputs, options: OptionValues) -> ValueAndGrads:
    """Richemond et al., 2024 (arXiv:2405.19107), with the mean over tokens left to the caller."""
    log_ratio = lp - inputs["logprobs"]
    advantages = inputs["advantages"]
    beta = options["beta"]
    value = -(lp * advantages - 0.5 * beta * log_ratio**2)
    return value, -(advantages - beta * log_ratio)


def _check_thresholds(options: OptionValues) -> str:
    low, high = np.broadcast_arrays(options["clip_low_threshold"], options["clip_high_threshold"])
    valid = (low >= 0) & (low <= high)
    if valid.all():
        return ""
    first = tuple(np.argwhere(~valid)[0])
    where = f" at position {first[0]}" if first else ""
    return (
        f"clip_low_threshold={low[first]:g} and clip_high_threshold={high[first]:g}{where} bound a "
        "ratio of probabilities, so 0 <= clip_low_threshold <= clip_high_threshold must hold"
    )


def _check_ratio_mask(inputs: Inputs) -> str:
    if _nonzero(inputs["sequence_ratio_mask"]).any() or not _nonzero(inputs["advantages"]).any():
        return ""
    return "sequence_ratio_mask marks no token; give 1 for the sampled tokens and 0 for others"


def _check_beta(options: OptionValues) -> str:
    beta = options["beta"]
    return "" if beta >= 0 else f"beta={beta:g} is negative; it must be at least 0"


_POLICY = ("logprobs", "advantages")
_THRESHOLDS = ("clip_low_threshold", "clip_high_threshold")
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
        per_token=_THRESHOLDS,
        check=_check_thresholds,
    ),
    "cispo": NamedLoss(
        _POLICY,
        {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
        _cispo,
        mask_input="advantages",
        per_token=_THRESHOLDS,
        check=_check_thresholds,
    ),
    "gspo": NamedLoss(
        (*_POLICY, "sequence_ratio_mask"),
        {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},  # of the paper
        _gspo,
        mask_input="advantages",
        per_token=_THRESHOLDS,
        per_sequence=True,
        reads="sequence_ratio_mask",
        check=_check_thresholds,
        check_inputs=_check_ratio_mask,
    ),
    "dro": NamedLoss(_POLICY, {"beta": 0.05}, _dro, check=_check_beta),
}


# losses of the Tinker API of which no published formula was found, and what to use instead
UNPUBLISHED: Mapping[str, str] = {
    "stable_reinforce": "importance_sampling, or ppo, cispo or gspo for off-policy data"
}


def find_loss(name: str, options: Options | None = None) -> tuple[NamedLoss, Options]:
    """Return a loss and its options with defaults filled in.

    Raises ConfigError for an unknown name or option, and for an invalid value.
    """
    if name in UNPUBLISHED:
        raise ConfigError(
            f"loss {name!r} is not supported: no published formula of it was found; use "
            f"{UNPUBLISHED[name]}"
        )
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


def options_of(loss: NamedLoss, options: Options, datum: Datum) -> OptionValues:
    """Return complete options, with the arrays of a datum that gives some token by token."""
    given = {name: datum.loss_inputs[name] for name in loss.per_token if name in datum.loss_inputs}
    return {**options, **{name: np.asarray(values, np.float64) for name, values in given.items()}}


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
    read = mask if not loss.reads else mask | (inputs[loss.reads] != 0)
    # overflow at masked tokens is harmless; elsewhere adapters reject values that are not finite
    with np.errstate(over="ignore", invalid="ignore"):
        values = options_of(loss, options, datum)
        value, grads = loss.compute(np.where(read, lp, 0.0), inputs, values)
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

    These are the positions where the loss can have a gradient or which it reads, and all sampled
    tokens, whatever their advantage, because the KL from the sampling policy is measured on them.
    """
    mask = _has_gradient(loss, datum)
    if isinstance(loss, str) and "logprobs" in LOSSES[loss].inputs:
        mask = np.asarray(mask | _nonzero(datum.loss_inputs["logprobs"]))
    if isinstance(loss, str) and LOSSES[loss].reads:
        mask = np.asarray(mask | _nonzero(datum.loss_inputs[LOSSES[loss].reads]))
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

"""The named losses, token by token: what each reads, its value and its slope; no backend needs to
know more.

Every loss here is a sum over tokens, so that its gradient is fixed by dloss/dlogprob at each token:
adapters compute log-probabilities, take the slope from here, and push it back through the model.
The formulas are those that the Tinker API documents for its losses of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kitchen.errors import ConfigError, did_you_mean
from kitchen.types import Array, Datum, Loss

Options = Mapping[str, float]
# value and dvalue/dlogprob of each token, both of the shape of the targets
Sloped = tuple[Array, Array]


@dataclass(frozen=True)
class NamedLoss:
    """A loss by name; `at` maps log-probabilities (of the targets, nats), inputs and options to
    value and slope.
    """

    inputs: tuple[str, ...]  # beside target_tokens
    defaults: Options
    at: Callable[[Array, Mapping[str, Array], Options], Sloped]
    idle: str = ""  # the input that makes a token idle where it is 0
    # what is wrong with values of options; empty: nothing
    refused: Callable[[Options], str] = lambda options: ""


def _cross_entropy(lp: Array, inputs: Mapping[str, Array], options: Options) -> Sloped:
    weights = inputs["weights"]
    return np.where(weights == 0, 0.0, -lp * weights), -weights


def _importance_sampling(lp: Array, inputs: Mapping[str, Array], options: Options) -> Sloped:
    value = -np.exp(lp - inputs["logprobs"]) * inputs["advantages"]
    return value, value


def _ppo(lp: Array, inputs: Mapping[str, Array], options: Options) -> Sloped:
    """Schulman et al., 2017 (arXiv:1707.06347), eq. 7."""
    ratio, advantages = np.exp(lp - inputs["logprobs"]), inputs["advantages"]
    clipped = (
        np.clip(ratio, options["clip_low_threshold"], options["clip_high_threshold"]) * advantages
    )
    free = ratio * advantages
    return -np.minimum(free, clipped), np.where(free <= clipped, -free, 0.0)


def _cispo(lp: Array, inputs: Mapping[str, Array], options: Options) -> Sloped:
    """MiniMax, 2025 (arXiv:2506.13585), eq. 4: the clipped ratio is a constant weight."""
    ratio = np.exp(lp - inputs["logprobs"])
    slope = (
        -np.clip(ratio, options["clip_low_threshold"], options["clip_high_threshold"])
        * inputs["advantages"]
    )
    return slope * lp, slope


def _dro(lp: Array, inputs: Mapping[str, Array], options: Options) -> Sloped:
    """Richemond et al., 2024 (arXiv:2405.19107), with the mean over tokens left to the caller."""
    away, beta = lp - inputs["logprobs"], options["beta"]
    return -(lp * inputs["advantages"] - 0.5 * beta * away**2), -(
        inputs["advantages"] - beta * away
    )


def _crossed(options: Options) -> str:
    low, high = options["clip_low_threshold"], options["clip_high_threshold"]
    return (
        ""
        if 0 <= low <= high
        else (
            f"clip_low_threshold={low:g} and clip_high_threshold={high:g} bound a ratio of "
            "chances: neither may be below 0, nor the first above the second"
        )
    )


def _repelled(options: Options) -> str:
    return (
        ""
        if options["beta"] >= 0
        else f"beta={options['beta']:g} would push the policy away; it is at least 0"
    )


_POLICY = ("logprobs", "advantages")
LOSSES: Mapping[str, NamedLoss] = {
    "cross_entropy": NamedLoss(("weights",), {}, _cross_entropy, idle="weights"),
    "importance_sampling": NamedLoss(_POLICY, {}, _importance_sampling, idle="advantages"),
    "ppo": NamedLoss(
        _POLICY,
        {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        _ppo,
        idle="advantages",
        refused=_crossed,
    ),
    "cispo": NamedLoss(
        _POLICY,
        {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
        _cispo,
        idle="advantages",
        refused=_crossed,
    ),
    "dro": NamedLoss(_POLICY, {"beta": 0.05}, _dro, refused=_repelled),
}


def named(loss: str, options: Options | None = None) -> tuple[NamedLoss, Options]:
    """The loss and its options with defaults filled in; raises ConfigError for a name or an option
    that is unknown.
    """
    if loss not in LOSSES:
        raise ConfigError(f"loss {loss!r} is unknown here; {did_you_mean(loss, LOSSES)}")
    found = LOSSES[loss]
    for option in options or {}:
        if option not in found.defaults:
            raise ConfigError(
                f"loss {loss!r} has no option {option!r}; {did_you_mean(option, found.defaults)}"
            )
    full = {**found.defaults, **(options or {})}
    if wrong := found.refused(full):
        raise ConfigError(f"loss {loss!r}: {wrong}")
    return found, full


def value_and_grad(loss: str, options: Options | None, datum: Datum, logprobs: Array) -> Sloped:
    """Value and slope of each token of a datum, 0 where it is idle; float64, of the shape of the
    targets.
    """
    found, full = named(loss, options)
    lp = np.asarray(logprobs, np.float64)
    inputs = {name: np.asarray(datum.loss_inputs[name], np.float64) for name in found.inputs}
    live = np.broadcast_to(_live(loss, datum).reshape(-1, *[1] * (lp.ndim - 1)), lp.shape)
    # of idle tokens; what is not finite elsewhere, adapters refuse
    with np.errstate(over="ignore", invalid="ignore"):
        value, slope = found.at(np.where(live, lp, 0.0), inputs, full)
    return np.where(live, value, 0.0), np.where(live, slope, 0.0)


def scored(loss: str | Loss, datum: Datum) -> Array:
    """(N,) bool: where a backend must compute log-probabilities.

    Where the loss can have a gradient; and a token that was sampled, whatever its advantage, for
    how far the policy strayed is measured on it too.
    """
    live = _live(loss, datum)
    sampled = isinstance(loss, str) and "logprobs" in LOSSES[loss].inputs
    return live | (datum.loss_inputs["logprobs"] != 0) if sampled else live


def _live(loss: str | Loss, datum: Datum) -> Array:
    """(N,) bool: where the loss can have a gradient."""
    idle: Any = datum.loss_inputs.get("weights" if not isinstance(loss, str) else LOSSES[loss].idle)
    if idle is None:
        return np.ones(len(datum.tokens), bool)
    active: Array = np.asarray(idle) != 0
    return active if active.ndim == 1 else np.asarray(active.any(-1))

"""Quirks of training: the reduction of losses, and the name of the gradient's norm."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapters.tinker.skyrl.messages import ApiReply, ApiRequest, Send, is_result_with, post
from adapters.tinker.skyrl.results import wait_for
from kitchen.backend.losses import find_loss

# losses that are linear in the advantages
LINEAR = frozenset({"importance_sampling", "ppo", "cispo"})
# with these options, cispo has the gradient of -advantage * logprob
UNCLIPPED = {"clip_low_threshold": 1.0, "clip_high_threshold": 1.0}


@dataclass
class Backend:
    """The backend of the server; unknown until the first training pass."""

    is_jax: bool | None = None


class MeanLoss:
    """SkyRL's JAX backend averages losses, where the Tinker API sums them.

    It divides the loss of a sequence by the sum of its weights, which has no meaning for the
    gradients of a custom loss, and the gradient by the number of sequences. The bridge multiplies
    advantages by both numbers, and sends a cross-entropy as a `cispo` whose ratio is clipped to 1
    and whose advantages are the weights. If one step has several passes, the gradient is still
    divided by their number, which Adam does not notice.

    The FSDP and Megatron backends sum. The first forward pass of one datum tells them apart: JAX
    alone returns the loss of each token. Seen in 0.3.0 and git (a956457) on JAX.
    """

    def __init__(self, backend: Backend) -> None:
        self._lock = threading.Lock()
        self._backend = backend

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        if request.endpoint != "forward_backward":
            return send(request)
        content = request.json()
        batch = content["forward_backward_input"]
        if not batch["data"] or not self._is_jax(content["model_id"], batch, send):
            return send(request)
        return send(request.with_json({**content, "forward_backward_input": as_sum(batch)}))

    def _is_jax(self, model: str, batch: Mapping[str, Any], send: Send) -> bool:
        with self._lock:
            if self._backend.is_jax is None:
                probe = {"data": batch["data"][:1], "loss_fn": "cross_entropy"}
                answer = send(post("forward", {"model_id": model, "forward_input": probe}))
                result = wait_for(answer, send)
                self._backend.is_jax = "elementwise_loss" in result["loss_fn_outputs"][0]
            return self._backend.is_jax


class GradNorm:
    """SkyRL calls the norm of the gradient `skyrl.ai/grad_norm`, and returns null for NaN.

    Seen in 0.3.0 and git (a956457).
    """

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        answer = send(request)
        if not is_result_with(request, answer, b"skyrl.ai/"):
            return answer
        result = answer.json()
        metrics = {
            name.removeprefix("skyrl.ai/"): math.nan if value is None else value
            for name, value in (result.get("metrics") or {}).items()
        }
        return answer.with_json({**result, "metrics": metrics})


def as_sum(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pass whose mean over tokens and sequences is the sum of the given one."""
    loss, options, data = batch["loss_fn"], batch.get("loss_fn_config"), batch["data"]
    if loss == "cross_entropy":
        loss, options = "cispo", UNCLIPPED
        data = [_with_weights_as_advantages(datum) for datum in data]
    elif loss in LINEAR:
        options = find_loss(loss, options)[1]  # the defaults of SkyRL differ
    else:
        return batch
    scaled = [_scaled(datum, len(data)) for datum in data]
    return {"data": scaled, "loss_fn": loss, "loss_fn_config": dict(options) or None}


def _with_weights_as_advantages(datum: Mapping[str, Any]) -> Mapping[str, Any]:
    inputs = datum["loss_fn_inputs"]
    zeros = [0.0] * len(inputs["target_tokens"]["data"])
    return {
        **datum,
        "loss_fn_inputs": {
            "target_tokens": inputs["target_tokens"],
            "advantages": inputs["weights"],
            "logprobs": {"data": zeros},
        },
    }


def _scaled(datum: Mapping[str, Any], sequences: int) -> Mapping[str, Any]:
    """Return the datum with its advantages multiplied by what SkyRL divides by.

    Tokens without an advantage get the weight 0, because SkyRL computes their ratio otherwise,
    which may overflow.
    """
    inputs = datum["loss_fn_inputs"]
    advantages, logprobs = inputs["advantages"]["data"], inputs["logprobs"]["data"]
    weights = [float(value != 0) for value in advantages]
    factor = sum(weights) * sequences
    return {
        **datum,
        "loss_fn_inputs": {
            "target_tokens": inputs["target_tokens"],
            "weights": {"data": weights},
            "advantages": {"data": [value * factor for value in advantages]},
            "logprobs": {
                "data": [
                    logprob if weight else 0.0
                    for logprob, weight in zip(logprobs, weights, strict=True)
                ]
            },
        },
    }

"""Losses on SkyRL's JAX backend, which averages them over tokens and sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from adapters.tinker.skyrl.messages import post
from adapters.tinker.skyrl.passes import Backend, GradNorm, MeanLoss, as_sum
from kitchen.backend.losses import value_and_logprob_grads
from kitchen.types import Array, Datum
from tests.support.skyrl_replies import JAX_FORWARD, TRAIN_FORWARD, ReplayedSkyRL

RNG = np.random.default_rng(0)
LENGTHS = (3, 5)


def inputs_of(loss: str, length: int) -> Mapping[str, Array]:
    if loss == "cross_entropy":  # a custom loss sends gradients of any sign
        return {"weights": np.array(RNG.normal(size=length))}
    return {"logprobs": -RNG.random(length), "advantages": np.array(RNG.normal(size=length))}


def wire(loss: str, data: list[Datum]) -> dict[str, Any]:
    rows = [
        {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": datum.tokens.tolist()}]},
            "loss_fn_inputs": {
                name: {"data": values.tolist()} for name, values in datum.loss_inputs.items()
            },
        }
        for datum in data
    ]
    return {"data": rows, "loss_fn": loss, "loss_fn_config": None}


def skyrl_grads(batch: Mapping[str, Any], logprobs: list[Array]) -> list[Array]:
    """The gradient of SkyRL's loss on JAX with respect to the log-probabilities."""
    grads = []
    for row, lp in zip(batch["data"], logprobs, strict=True):
        inputs = {name: np.array(field["data"]) for name, field in row["loss_fn_inputs"].items()}
        weights = inputs.pop("weights", np.ones(len(lp)))
        tokens = np.array(row["model_input"]["chunks"][0]["tokens"])
        options = batch["loss_fn_config"]
        _, slope = value_and_logprob_grads(batch["loss_fn"], options, Datum(tokens, inputs), lp)
        grads.append(weights * slope / weights.sum() / len(logprobs))
    return grads


@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling", "ppo", "cispo"])
def test_gradient_is_that_of_the_sum(loss: str) -> None:
    data = []
    for length in LENGTHS:
        tokens = np.arange(length)
        data.append(Datum(tokens, {"target_tokens": tokens, **inputs_of(loss, length)}))
    logprobs = [-RNG.random(length) for length in LENGTHS]
    averaged = skyrl_grads(as_sum(wire(loss, data)), logprobs)
    for datum, lp, grads in zip(data, logprobs, averaged, strict=True):
        assert grads == pytest.approx(value_and_logprob_grads(loss, None, datum, lp)[1])


def test_tokens_without_an_advantage_are_left_out() -> None:
    tokens = np.arange(2)
    policy = {"logprobs": np.array([-1.0, np.nan]), "advantages": np.array([2.0, 0.0])}
    batch = wire("ppo", [Datum(tokens, {"target_tokens": tokens, **policy})])
    sent = as_sum(batch)["data"][0]["loss_fn_inputs"]
    assert sent["weights"]["data"] == [1.0, 0.0]
    assert sent["logprobs"]["data"] == [-1.0, 0.0]
    assert sent["advantages"]["data"] == [2.0, 0.0]


def test_options_have_the_defaults_of_the_kitchen() -> None:
    tokens = np.arange(2)
    data = [Datum(tokens, {"target_tokens": tokens, **inputs_of("cispo", 2)})]
    options = as_sum(wire("cispo", data))["loss_fn_config"]
    assert options == {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}


@pytest.mark.parametrize(("forward", "loss"), [(JAX_FORWARD, "cispo"), (TRAIN_FORWARD, "ppo")])
def test_only_the_jax_backend_gets_scaled_passes(forward: dict[str, Any], loss: str) -> None:
    tokens = np.arange(3)
    inputs = {name: np.ones(3) for name in ("target_tokens", "logprobs", "advantages")}
    batch = wire("ppo" if loss == "ppo" else "cispo", [Datum(tokens, inputs)])
    request = post("forward_backward", {"model_id": "model_1", "forward_backward_input": batch})
    skyrl, quirk = ReplayedSkyRL(retrieve_future=forward), MeanLoss(Backend())
    for _ in range(2):
        quirk(request, skyrl)
    sent = skyrl.last("forward_backward")["forward_backward_input"]["data"][0]
    factor = 3.0 if forward is JAX_FORWARD else 1.0
    assert sent["loss_fn_inputs"]["advantages"]["data"] == [factor] * 3
    assert skyrl.count("forward") == 1


def test_norm_of_the_gradient_gets_its_usual_name() -> None:
    metrics = {"skyrl.ai/grad_norm": 2.5, "skyrl.ai/learning_rate": 0.01}
    skyrl = ReplayedSkyRL(retrieve_future={"metrics": metrics})
    answer = GradNorm()(post("retrieve_future", {"request_id": "7"}), skyrl)
    assert answer.json() == {"metrics": {"grad_norm": 2.5, "learning_rate": 0.01}}

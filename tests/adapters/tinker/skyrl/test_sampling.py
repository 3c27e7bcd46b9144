"""Log-probabilities of prompts on SkyRL, and the weights that samples come from."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.tinker.skyrl.messages import ApiReply, ApiRequest, Send, post, reply
from adapters.tinker.skyrl.passes import Backend
from adapters.tinker.skyrl.results import AWAY
from adapters.tinker.skyrl.sampling import FrozenWeights, PromptLogprobs
from tests.support.skyrl_replies import CREATED, SAMPLES, ReplayedSkyRL


# JAX returns 2 values for 3 tokens; vLLM, behind the FSDP and Megatron backends, one per token
@pytest.mark.parametrize("values", [[-3.0, -0.5], [None, -3.0, -0.5]])
def test_first_token_has_no_logprob(values: list[float | None]) -> None:
    skyrl = ReplayedSkyRL(retrieve_future={**SAMPLES, "prompt_logprobs": values})
    quirk = PromptLogprobs()
    quirk(post("asample", {"prompt": {"chunks": [{"tokens": [1, 2]}, {"tokens": [3]}]}}), skyrl)
    answer = quirk(post("retrieve_future", {"request_id": "1"}), skyrl)
    assert answer.json()["prompt_logprobs"] == [None, -3.0, -0.5]


BEST = "tinker://model_1/sampler_weights/best"


class Samplers:
    """The quirk over replayed replies, with a sampling session of a checkpoint or a snapshot."""

    def __init__(self, *, is_jax: bool = True) -> None:
        self.skyrl = ReplayedSkyRL(create_sampling_session={"sampling_session_id": "of a path"})
        self.quirk = FrozenWeights(Backend(is_jax))

    def send(self, endpoint: str, **content: Any) -> ApiReply:
        return self.quirk(post(endpoint, content), self.skyrl)

    def train(self) -> None:
        self.send("optim_step", model_id="model_1")

    def snapshot(self) -> str:
        self.send("save_weights_for_sampler", model_id="model_1", sampling_session_seq_id=0)
        retrieved = ReplayedSkyRL(retrieve_future={"sampling_session_id": "of a snapshot"})
        self.quirk(post("retrieve_future", {"request_id": "1"}), retrieved)
        return "of a snapshot"

    def checkpoint(self) -> str:
        self.send("save_weights_for_sampler", model_id="model_1", path="best")
        return self.open(BEST)

    def open(self, path: str) -> str:
        answer = self.send("create_sampling_session", session_id="session_1", model_path=path)
        return str(answer.json()["sampling_session_id"])

    def sample(self, session: str) -> ApiReply:
        return self.send("asample", sampling_session_id=session, seq_id=1)


@pytest.mark.parametrize("kind", ["snapshot", "checkpoint"])
def test_current_weights_are_sampled_as_they_are(kind: str) -> None:
    samplers = Samplers()
    samplers.train()
    session = getattr(samplers, kind)()
    assert samplers.sample(session).status == 200
    assert samplers.skyrl.last("asample")["sampling_session_id"] == session
    assert not samplers.skyrl.count("create_model")


def test_earlier_checkpoints_are_sampled_from_a_copy() -> None:
    samplers = Samplers()
    session = samplers.checkpoint()
    samplers.train()
    for _ in range(2):
        assert samplers.sample(session).status == 200
    skyrl = samplers.skyrl
    assert skyrl.last("load_weights")["path"] == "tinker://model_1/weights/best"
    copied = f"tinker://{CREATED['model_id']}/sampler_weights/best"
    assert skyrl.last("create_sampling_session")["model_path"] == copied
    assert skyrl.count("create_model") == 1


def test_checkpoints_of_other_runs_are_sampled_from_a_copy() -> None:
    samplers = Samplers()
    samplers.sample(samplers.open("tinker://model_0/sampler_weights/final"))
    assert samplers.skyrl.last("load_weights")["path"] == "tinker://model_0/weights/final"


# vLLM, behind the other backends, keeps the weights of the snapshot until the next one
@pytest.mark.parametrize(("is_jax", "status"), [(True, 400), (False, 200)])
def test_snapshots_of_earlier_steps_are_refused_on_jax(is_jax: bool, status: int) -> None:
    samplers = Samplers(is_jax=is_jax)
    session = samplers.snapshot()
    samplers.train()
    assert samplers.sample(session).status == status


def test_pending_samples_are_awaited_before_the_weights_change() -> None:
    samplers = Samplers()
    samplers.sample(samplers.snapshot())
    samplers.train()
    endpoints = [request.endpoint for request in samplers.skyrl.requests]
    assert endpoints.index("retrieve_future") < endpoints.index("optim_step")


@pytest.mark.parametrize("status", [400, 500])
def test_steps_follow_pending_samples_that_fail(status: int) -> None:
    samplers = Samplers()
    samplers.sample(samplers.snapshot())
    too_long = ReplayedSkyRL(status, retrieve_future={"detail": "the prompt is too long"})
    assert step_with(samplers, too_long).status == 200
    assert samplers.skyrl.count("optim_step") == 1


def test_steps_follow_pending_samples_without_a_readable_reply() -> None:
    samplers = Samplers()
    samplers.sample(samplers.snapshot())
    assert step_with(samplers, lambda request: _read(ApiReply(200, b"<html>"))).status == 200


def test_steps_wait_while_the_server_is_away() -> None:
    samplers = Samplers()
    samplers.sample(samplers.snapshot())
    assert step_with(samplers, lambda request: reply({}, AWAY)).status == AWAY
    assert not samplers.skyrl.count("optim_step")
    samplers.train()
    assert samplers.skyrl.count("retrieve_future") == 1


def step_with(samplers: Samplers, result: Send) -> ApiReply:
    """Send an optimiser step, where results of samples are replaced."""

    def send(request: ApiRequest) -> ApiReply:
        return (result if request.endpoint == "retrieve_future" else samplers.skyrl)(request)

    return samplers.quirk(post("optim_step", {"model_id": "model_1"}), send)


def _read(answer: ApiReply) -> ApiReply:
    answer.json()
    return answer

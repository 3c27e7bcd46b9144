"""Messages of SkyRL in the forms that the SDK reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_proto_response

from adapters.tinker.skyrl.checkpoints import SamplerPaths
from adapters.tinker.skyrl.messages import PROTOBUF, ApiReply, ApiRequest, Quirk, behind, post
from adapters.tinker.skyrl.passes import GradNorm
from adapters.tinker.skyrl.results import wait_for
from adapters.tinker.skyrl.wire import FailedRequests, JsonMessages, SampleIds
from kitchen.errors import BackendError, DataError
from tests.support.skyrl_replies import JAX_FORWARD, TOP, ReplayedSkyRL

RETRIEVE = post("retrieve_future", {"request_id": "1"})


def forward_backward(
    targets: np.ndarray, *, forward_only: bool, **inputs: np.ndarray
) -> ApiRequest:
    arrays = {"target_tokens": targets, **inputs}
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={name: types.TensorData.from_numpy(arrays[name]) for name in arrays},
    )
    request = types.ForwardBackwardRequest(
        model_id="model_1",
        seq_id=4,
        forward_backward_input=types.ForwardBackwardInput(
            data=[datum], loss_fn="ppo", loss_fn_config={"clip_low_threshold": 0.5}
        ),
    )
    message = forward_backward_request_to_proto(request)
    message.forward_only = forward_only
    path = "/api/v1/forward_backward"
    return ApiRequest("POST", path, message.SerializeToString(), PROTOBUF)


@pytest.mark.parametrize(
    ("forward_only", "endpoint", "field"),
    [(False, "forward_backward", "forward_backward_input"), (True, "forward", "forward_input")],
)
def test_passes_are_sent_as_json(forward_only: bool, endpoint: str, field: str) -> None:
    skyrl = ReplayedSkyRL()
    JsonMessages()(forward_backward(np.array([2, 3, 4]), forward_only=forward_only), skyrl)
    sent = skyrl.last(endpoint)
    assert (sent["model_id"], sent["seq_id"]) == ("model_1", 4)
    assert sent[field]["loss_fn_config"] == {"clip_low_threshold": 0.5}
    datum = sent[field]["data"][0]
    assert datum["model_input"]["chunks"] == [{"type": "encoded_text", "tokens": [1, 2, 3]}]
    assert datum["loss_fn_inputs"] == {"target_tokens": {"data": [2, 3, 4]}}


def test_several_targets_per_token_are_refused() -> None:
    request = forward_backward(np.ones((3, 2), np.int64), forward_only=True)
    with pytest.raises(DataError, match=r"target_tokens has the shape \(3, 2\)"):
        JsonMessages()(request, ReplayedSkyRL())


@pytest.mark.parametrize("name", ["clip_low_threshold", "sequence_ratio_mask"])
def test_inputs_that_skyrl_ignores_are_refused(name: str) -> None:
    inputs = {name: np.ones(3, np.float32)}
    request = forward_backward(np.array([2, 3, 4]), forward_only=False, **inputs)
    with pytest.raises(DataError, match=f"ignores the loss input '{name}'"):
        JsonMessages()(request, ReplayedSkyRL())


def test_logprobs_of_a_pass_become_protobuf() -> None:
    answer = JsonMessages()(RETRIEVE, ReplayedSkyRL(retrieve_future=JAX_FORWARD))
    output: Any = deserialize_proto_response(answer.body, types.ForwardBackwardOutput)
    assert output.loss_fn_outputs[0]["logprobs"].tolist() == [-1.5, -0.25, -2.0]


def test_samples_become_protobuf() -> None:
    answer = JsonMessages()(RETRIEVE, ReplayedSkyRL(retrieve_future=TOP))
    response: Any = deserialize_proto_response(answer.body, types.SampleResponse)
    first, second = response.sequences
    assert (first.stop_reason, first.tokens, first.logprobs) == ("stop", [5, 9], [-0.5, -1.25])
    assert second.stop_reason == "length"
    assert response.topk_prompt_logprobs[0] is None
    assert [token for token, _ in response.topk_prompt_logprobs[1]] == [7, 8]
    assert [token for token, _ in response.topk_prompt_logprobs[2]] == [3]


def test_each_sample_gets_an_id() -> None:
    answer = SampleIds()(post("asample", {"num_samples": 3}), ReplayedSkyRL())
    assert len(set(answer.json()["sample_sequence_ids"])) == 3


@pytest.mark.parametrize("status", [400, 500])
def test_failed_requests_keep_their_message(status: int) -> None:
    skyrl = ReplayedSkyRL(status, retrieve_future={"detail": "LoRA rank 64 is above 32"})
    answer = FailedRequests()(RETRIEVE, skyrl)
    assert (answer.status, answer.json()["error"]) == (200, "LoRA rank 64 is above 32")


PLAIN = ApiReply(500, b"Internal Server Error tinker://m/a skyrl.ai/", "text/plain")


@pytest.mark.parametrize("quirk", [FailedRequests(), GradNorm(), SamplerPaths(), JsonMessages()])
def test_messages_in_plain_text_are_kept(quirk: Quirk) -> None:
    answer = behind([FailedRequests(), quirk], lambda request: PLAIN)(RETRIEVE)
    assert (answer.status, answer.json()["error"]) == (200, PLAIN.text)


def test_awaited_requests_fail_with_plain_text() -> None:
    with pytest.raises(BackendError, match=r"SkyRL: Internal Server Error .* \(status 500\)"):
        wait_for(PLAIN, ReplayedSkyRL())


@pytest.mark.parametrize(
    "message, category",
    [
        ("Loss functions ['gspo'] are not supported by the JAX backend", "user"),
        ("Sampling requested for unknown model_id(s): ['']", "user"),
        ("Sampling requested for unknown model_id(s): ['model_1']", "unknown"),
        ("out of memory", "unknown"),
    ],
)
def test_what_a_backend_lacks_is_an_error_of_the_user(message: str, category: str) -> None:
    skyrl = ReplayedSkyRL(400, retrieve_future={"detail": message})
    assert FailedRequests()(RETRIEVE, skyrl).json() == {"error": message, "category": category}


def test_unloaded_models_are_gone() -> None:
    skyrl = ReplayedSkyRL(400, retrieve_future={"detail": "Model model_1 not loaded"})
    assert FailedRequests()(RETRIEVE, skyrl).status == 410


def test_other_replies_pass_unchanged() -> None:
    skyrl = ReplayedSkyRL(retrieve_future={"path": "tinker://model_1/weights/a"})
    assert JsonMessages()(RETRIEVE, skyrl) == skyrl(RETRIEVE)

"""Data survive the way from the kitchen through SDK, bytes and server back to the kitchen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

pytest.importorskip("tinker")

from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import (
    deserialize_forward_backward_output,
    deserialize_sample_response,
)

from adapters.tinker.answers import loss_output, prompt_logprobs, samples, top_logprobs
from adapters.tinker.datums import sdk_datum
from adapters.tinker_protobuf import (
    ForwardBackward,
    loss_output_message,
    parse_forward_backward,
    sample_response,
)
from kitchen.errors import BackendError
from kitchen.types import Datum, LossOutput, Sampled

IDS = st.integers(0, 2**31 - 1)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def datums(draw: Any) -> Datum:
    count, width = draw(st.integers(1, 9)), draw(st.sampled_from([None, 1, 3]))
    shape = (count,) if width is None else (count, width)
    inputs = {"target_tokens": draw(arrays.arrays(np.int64, shape, elements=IDS))}
    for name in draw(st.sets(st.sampled_from(["weights", "advantages", "logprobs"]))):
        inputs[name] = draw(arrays.arrays(np.float32, shape, elements=FLOATS))
    return Datum(draw(arrays.arrays(np.int64, (count,), elements=IDS)), inputs)


def round_trip(data: list[Datum], **more: Any) -> ForwardBackward:
    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(
            data=[sdk_datum(datum) for datum in data], loss_fn="cross_entropy", **more
        ),
        model_id="a:train:0",
        seq_id=3,
    )
    return parse_forward_backward(forward_backward_request_to_proto(request).SerializeToString())


@settings(max_examples=150)
@given(st.lists(datums(), min_size=1, max_size=4))
def test_datums_survive_the_round_trip(data: list[Datum]) -> None:
    request = round_trip(data)
    assert (request.model, request.number, request.forward_only, request.loss) == (
        "a:train:0",
        3,
        False,
        "cross_entropy",
    )
    for sent, got in zip(data, request.data(), strict=True):
        np.testing.assert_array_equal(got.tokens, sent.tokens)
        assert got.loss_inputs.keys() == sent.loss_inputs.keys()
        for name, values in sent.loss_inputs.items():
            np.testing.assert_array_equal(got.loss_inputs[name], values)
            assert got.loss_inputs[name].dtype == values.dtype


@settings(max_examples=60)
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 40)),
        elements=st.sampled_from([0.0, 0.0, 0.0, 1.5, -2.25]),
    )
)
def test_sparse_matrix_arrives_dense(weights: Any) -> None:
    torch = pytest.importorskip("torch")
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1] * len(weights)),
        loss_fn_inputs={
            "target_tokens": torch.ones(weights.shape, dtype=torch.int64),
            "weights": torch.from_numpy(weights),
        },
    )
    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(data=[datum], loss_fn="cross_entropy"),
        model_id="m",
        seq_id=1,
    )
    [got] = parse_forward_backward(
        forward_backward_request_to_proto(request).SerializeToString()
    ).data()
    np.testing.assert_array_equal(got.loss_inputs["weights"], weights)


def test_loss_options_arrive_as_numbers() -> None:
    datum = Datum(np.array([1]), {"target_tokens": np.array([2])})
    assert round_trip([datum], loss_fn_config={"clip_low_threshold": 0.7}).options() == {
        "clip_low_threshold": 0.7
    }


@settings(max_examples=80)
@given(st.lists(datums(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_loss_output_survives_the_round_trip(data: list[Datum], random: Any) -> None:
    nats = tuple(np.full(np.shape(datum.targets), -random.random(), np.float32) for datum in data)
    output = LossOutput(nats, {"loss:sum": 1.25, "data:sum": 3.0})
    answer = deserialize_forward_backward_output(loss_output_message(output))
    got = loss_output(answer, data, "next_year", None, "server")
    assert got.metrics == output.metrics
    for mine, sent in zip(got.logprobs, nats, strict=True):
        np.testing.assert_array_equal(mine, sent)


def test_samples_and_scores_survive_the_round_trip() -> None:
    drawn = [
        Sampled(np.array([5, 6]), np.array([-0.5, -1.0], np.float32), "stop"),
        Sampled(np.array([7]), np.array([-2.0], np.float32), "length"),
    ]
    nats = np.array([np.nan, -1.5, -2.5], np.float32)
    ids, values = (
        np.array([[-1, -1], [4, 9], [1, 0]]),
        np.array([[np.nan] * 2, [-0.1, -3.0], [-0.2, -2.0]], np.float32),
    )
    answer = deserialize_sample_response(sample_response(drawn, nats, (ids, values)))
    for mine, sent in zip(samples(answer.sequences, 2, 2, "server"), drawn, strict=True):
        np.testing.assert_array_equal(mine.tokens, sent.tokens)
        np.testing.assert_array_equal(mine.logprobs, sent.logprobs)
        assert mine.stop_reason == sent.stop_reason
    scores = prompt_logprobs(answer.prompt_logprobs, 3, "server")
    np.testing.assert_array_equal(scores, nats)
    got = top_logprobs(answer, 3, 2, "server")
    np.testing.assert_array_equal(got[0], ids)
    np.testing.assert_array_equal(got[1], values)


def test_missing_logprobs_are_an_error() -> None:
    data = [Datum(np.array([1, 2]), {"target_tokens": np.array([2, 3])})]
    for nats in ((), (np.zeros(1, np.float32),)):
        answer = deserialize_forward_backward_output(loss_output_message(LossOutput(nats, {})))
        with pytest.raises(BackendError, match=r"^server returned"):
            loss_output(answer, data, "cross_entropy", None, "server")

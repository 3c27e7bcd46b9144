"""Quirks of the messages: JSON for protobuf, ids of samples, and errors of requests."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from adapters.tinker.skyrl.messages import PROTOBUF, ApiReply, ApiRequest, Send, post, reply
from adapters.tinker_protobuf import (
    loss_output_message,
    parse_forward_backward,
    sample_response,
)
from kitchen.errors import DataError
from kitchen.types import Array, Datum, Floats, LossOutput, Sampled, Tokens

# the loss inputs that SkyRL reads, in 0.3.0 and git (a956457)
INPUTS = frozenset({"target_tokens", "weights", "logprobs", "advantages", "values", "returns"})

# messages of SkyRL on what a backend lacks; the FSDP backend has no base model, which has no id
_LACKS = re.compile(r"not supported|for unknown model_id\(s\): \[''\]", re.IGNORECASE)


class JsonMessages:
    """SkyRL gets and returns JSON where the SDK writes and reads protobuf.

    Seen in 0.3.0, which has no protobuf. SkyRL from git (a956457) has the messages of SDK 0.24, and
    JSON too, so the bridge uses JSON for both. Loss inputs that SkyRL ignores are refused.
    """

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        if request.endpoint == "forward_backward" and request.content_type == PROTOBUF:
            return send(_json_pass(request.body))
        answer = send(request)
        if request.endpoint != "retrieve_future" or answer.is_error:
            return answer
        result = answer.json()
        if "sequences" in result:
            return _protobuf(answer, _samples(result))
        if "loss_fn_outputs" in result:
            return _protobuf(answer, _loss_output(result))
        return answer


class SampleIds:
    """SkyRL returns no ids for samples, and the SDK requires one per sample.

    Seen in 0.3.0 and git (a956457).
    """

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        answer = send(request)
        if request.endpoint != "asample" or answer.is_error:
            return answer
        ids = [secrets.token_hex(8) for _ in range(request.json().get("num_samples", 1))]
        return answer.with_json({**answer.json(), "sample_sequence_ids": ids})


class FailedRequests:
    """SkyRL reports a request that failed as status 400 or 500 of `retrieve_future`.

    The SDK takes these for faults of the network, and asks again without end for a 500. A model
    that SkyRL has unloaded becomes status 410, so that the run opens a new session. A feature that
    the backend lacks becomes an error of the category `user`, so that a run is refused by its name.
    Seen in 0.3.0 and git (a956457).
    """

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        answer = send(request)
        if request.endpoint != "retrieve_future" or answer.status not in (400, 500):
            return answer
        if "not loaded" in answer.detail:
            return replace(answer, status=410)
        return failed(answer.detail, "user" if _LACKS.search(answer.detail) else "unknown")


def failed(message: str, category: str = "unknown") -> ApiReply:
    """Return the result of a request that failed, which the SDK takes as final."""
    return reply({"error": message, "category": category})


def _json_pass(body: bytes) -> ApiRequest:
    """Return the request in JSON; raises DataError for inputs that SkyRL would misread."""
    parsed = parse_forward_backward(body)
    endpoint, field = "forward_backward", "forward_backward_input"
    if parsed.forward_only:
        endpoint, field = "forward", "forward_input"
    content = {
        "data": [_datum(datum) for datum in parsed.data()],
        "loss_fn": parsed.loss,
        "loss_fn_config": parsed.options() or None,
    }
    return post(endpoint, {"model_id": parsed.model, "seq_id": parsed.number, field: content})


def _datum(datum: Datum) -> Mapping[str, Any]:
    for name, values in datum.loss_inputs.items():
        if name not in INPUTS:
            raise DataError(
                f"SkyRL ignores the loss input {name!r}, so leave it out; it takes thresholds as "
                "options of the loss, with one value for all tokens"
            )
        if values.ndim != 1:
            raise DataError(
                f"SkyRL takes one target per token, but {name} has the shape {values.shape}"
            )
    chunk = {"type": "encoded_text", "tokens": datum.tokens.tolist()}
    inputs = {name: {"data": values.tolist()} for name, values in datum.loss_inputs.items()}
    return {"model_input": {"chunks": [chunk]}, "loss_fn_inputs": inputs}


def _loss_output(result: Mapping[str, Any]) -> bytes:
    outputs = result["loss_fn_outputs"]
    logprobs = tuple(np.array(output["logprobs"]["data"], np.float32) for output in outputs)
    return loss_output_message(LossOutput(logprobs, dict(result.get("metrics") or {})))


def _samples(result: Mapping[str, Any]) -> bytes:
    samples = [
        Sampled(
            np.array(sequence["tokens"], np.int64),
            np.array(sequence["logprobs"], np.float32),
            sequence["stop_reason"],
        )
        for sequence in result["sequences"]
    ]
    prompt, top = result.get("prompt_logprobs"), result.get("topk_prompt_logprobs")
    return sample_response(
        samples,
        None if prompt is None else _with_nan(prompt),
        None if top is None else _top_tokens(top),
    )


def _with_nan(values: list[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], np.float32)


def _top_tokens(rows: list[list[list[float]] | None]) -> tuple[Tokens, Floats]:
    """Return (T, k) ids and nats; NaN where SkyRL has fewer than k tokens."""
    k = max((len(row) for row in rows if row), default=1)
    ids: Array = np.zeros((len(rows), k), np.int64)
    nats: Array = np.full((len(rows), k), np.nan, np.float32)
    for row, position in zip(rows, range(len(rows)), strict=True):
        for column, (token, logprob) in enumerate(row or ()):
            ids[position, column], nats[position, column] = token, logprob
    return ids, nats


def _protobuf(answer: ApiReply, body: bytes) -> ApiReply:
    return replace(answer, body=body, content_type=PROTOBUF)

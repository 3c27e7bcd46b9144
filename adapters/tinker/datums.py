"""Conversions of our datums to the SDK's, and of the SDK's results to ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tinker import types

from kitchen.errors import BackendError
from kitchen.types import Array, Datum, LossOutput, Sampled, Tokens

ABSENT_LOGPROB = -99999.0  # nats; marks an empty cell of a top-k matrix on the wire


def model_input(tokens: Tokens) -> Any:
    return types.ModelInput(chunks=[types.EncodedTextChunk(tokens=np.asarray(tokens).tolist())])


def sdk_datum(datum: Datum) -> Any:
    """Convert a datum: integers as int64, everything else as float32, each array with its shape."""
    inputs = {
        name: types.TensorData.from_numpy(_wire_array(values))
        for name, values in datum.loss_inputs.items()
    }
    return types.Datum(model_input=model_input(datum.tokens), loss_fn_inputs=inputs)


def without_extras(datum: Datum) -> Datum:
    """Drop the inputs that only a custom loss reads; targets and weights stay."""
    weights = datum.loss_inputs.get("weights", np.zeros(np.shape(datum.targets), np.float32))
    return Datum(datum.tokens, {"target_tokens": datum.targets, "weights": weights})


def loss_output(result: Any, data: Sequence[Datum]) -> LossOutput:
    """Convert the result of a pass; raises BackendError unless the server scored every datum."""
    logprobs = [_array(output.get("logprobs")) for output in result.loss_fn_outputs]
    if len(logprobs) != len(data):
        raise _unlike_targets(len(logprobs), len(data))
    shaped = []
    for array, datum in zip(logprobs, data, strict=True):
        if array is None or array.size != np.size(datum.targets):
            raise _unlike_targets(len(logprobs), len(data))
        shaped.append(array.reshape(np.shape(datum.targets)))
    return LossOutput(tuple(shaped), dict(result.metrics))


def _unlike_targets(outputs: int, datums: int) -> BackendError:
    return BackendError(
        f"the server returned {outputs} arrays of log-probabilities for {datums} datums, or arrays "
        "that do not match their targets"
    )


def sampled(sequence: Any) -> Sampled:
    tokens = sequence.tokens_np if sequence.tokens_np is not None else sequence.tokens
    logprobs = sequence.logprobs_np if sequence.logprobs_np is not None else sequence.logprobs
    if logprobs is None:
        raise BackendError("the server returned a completion without log-probabilities")
    return Sampled(
        np.asarray(tokens, np.int64), np.asarray(logprobs, np.float32), sequence.stop_reason
    )


def prompt_logprobs(result: Any) -> Array:
    """Return (T,) log-probabilities in nats; NaN for the first token."""
    return np.array([np.nan if value is None else value for value in result], np.float32)


def top_logprobs(result: Any) -> tuple[Tokens, Array]:
    """Return (T, k) token ids and nats; -1 and NaN in empty cells."""
    top = result.topk_prompt_logprobs_np
    if top is None:
        raise BackendError("the server returned no top tokens for the prompt")
    absent = top.logprobs <= ABSENT_LOGPROB
    return (
        np.where(absent, -1, top.token_ids).astype(np.int64),
        np.where(absent, np.nan, top.logprobs).astype(np.float32),
    )


def _wire_array(values: Array) -> Array:
    array = np.asarray(values)
    return array.astype(np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32)


def _array(tensor: Any) -> Array | None:
    return None if tensor is None else np.asarray(tensor.to_numpy(), np.float32)

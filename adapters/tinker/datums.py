"""From the kitchen's datums to the SDK's, and back from what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tinker import types

from kitchen.errors import BackendError
from kitchen.types import Array, Datum, LossOutput, Sampled, Tokens


def model_input(tokens: Tokens) -> Any:
    return types.ModelInput(chunks=[types.EncodedTextChunk(tokens=np.asarray(tokens).tolist())])


def theirs(datum: Datum) -> Any:
    """Integers as int64, all else as float32, each array with its shape."""
    inputs = {
        name: types.TensorData.from_numpy(_wire(values))
        for name, values in datum.loss_inputs.items()
    }
    return types.Datum(model_input=model_input(datum.tokens), loss_fn_inputs=inputs)


def without_extras(datum: Datum) -> Datum:
    """What a server reads of data for a custom loss, which may have more."""
    weights = datum.loss_inputs.get("weights", np.zeros(np.shape(datum.targets), np.float32))
    return Datum(datum.tokens, {"target_tokens": datum.targets, "weights": weights})


def loss_output(answer: Any, data: Sequence[Datum]) -> LossOutput:
    """Raises BackendError where the server did not score every datum."""
    found = [_array(one.get("logprobs")) for one in answer.loss_fn_outputs]
    if len(found) != len(data) or any(
        lp is None or lp.size != np.size(d.targets) for lp, d in zip(found, data, strict=False)
    ):
        raise BackendError(
            f"the server answered with {len(found)} log-probabilities for {len(data)} datums, or "
            "with "
            "others than their targets'"
        )
    shaped = tuple(
        lp.reshape(np.shape(d.targets)) for lp, d in zip(found, data, strict=True) if lp is not None
    )
    return LossOutput(shaped, dict(answer.metrics))


def sampled(sequence: Any) -> Sampled:
    tokens = np.asarray(
        sequence.tokens_np if sequence.tokens_np is not None else sequence.tokens, np.int64
    )
    nats = sequence.logprobs_np if sequence.logprobs_np is not None else sequence.logprobs
    if nats is None:
        raise BackendError("the server gave no log-probabilities with what it wrote")
    return Sampled(tokens, np.asarray(nats, np.float32), sequence.stop_reason)


def prompt_logprobs(answer: Any) -> Array:
    """(T,) nats; NaN for the first."""
    return np.array([np.nan if each is None else each for each in answer], np.float32)


def top_logprobs(answer: Any) -> tuple[Tokens, Array]:
    """(T, k) ids and nats; -1 and NaN where there are none."""
    found = answer.topk_prompt_logprobs_np
    if found is None:
        raise BackendError("the server gave no likeliest tokens of the prompt")
    absent = found.logprobs <= -99999.0
    return (
        np.where(absent, -1, found.token_ids).astype(np.int64),
        np.where(absent, np.nan, found.logprobs).astype(np.float32),
    )


def _wire(values: Array) -> Array:
    array = np.asarray(values)
    return array.astype(np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32)


def _array(tensor: Any) -> Array | None:
    return None if tensor is None else np.asarray(tensor.to_numpy(), np.float32)

"""Conversions of our datums to the SDK's."""

from __future__ import annotations

from typing import Any

import numpy as np
from tinker import types

from kitchen.types import Array, Datum, Tokens


def model_input(tokens: Tokens) -> Any:
    return types.ModelInput(chunks=[types.EncodedTextChunk(tokens=np.asarray(tokens).tolist())])


def sdk_datum(datum: Datum) -> Any:
    """Convert a datum: integers as int64, everything else as float32, each array with its shape."""
    inputs = {
        name: types.TensorData.from_numpy(_wire_array(values))
        for name, values in datum.loss_inputs.items()
    }
    return types.Datum(model_input=model_input(datum.tokens), loss_fn_inputs=inputs)


def _wire_array(values: Array) -> Array:
    array = np.asarray(values)
    return array.astype(np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32)

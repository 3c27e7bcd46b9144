"""Arrays through JSON and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kitchen.engine.codec import json_adapter
from kitchen.types import Floats, Mask, Tokens


@pytest.mark.parametrize(
    "kind, array",
    [
        (Floats, np.array([0.1, -0.0, np.nan, np.inf, -np.inf, 1e-45], np.float32)),
        (Tokens, np.array([0, -1, 2**62])),
        (Mask, np.array([True, False])),
        (Floats, np.zeros((2, 3), np.float32)),
        (Tokens, np.zeros(0, np.int64)),
    ],
)
def test_they_come_back_to_the_last_bit(kind: Any, array: Any) -> None:
    adapter = json_adapter(tuple[kind, ...])
    [back] = adapter.validate_json(adapter.dump_json((array,)))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()

"""Types: arrays survive JSON to the last bit, and seeds have a range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kitchen.engine.codec import json_adapter
from kitchen.errors import ConfigError
from kitchen.types import Floats, Lora, Mask, Tokens


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
def test_arrays_survive_json_to_the_last_bit(kind: Any, array: Any) -> None:
    adapter = json_adapter(tuple[kind, ...])
    [decoded] = adapter.validate_json(adapter.dump_json((array,)))
    assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
    assert decoded.tobytes() == array.tobytes()


@pytest.mark.parametrize("seed", [-1, 2**64, 2**70])
def test_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match=f"the seed is {seed}"):
        Lora(seed=seed)


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_seed_in_range_is_kept(seed: int) -> None:
    assert Lora(seed=seed).seed == seed

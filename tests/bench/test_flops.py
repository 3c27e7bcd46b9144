"""FLOP counts of a batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.bench.flops import Shape, TokenCounts


def test_the_weights_of_a_model_are_counted(tmp_path: Path) -> None:
    """SmolLM2-135M has 134,515,008 weights: 28,311,552 in the output layer, 35,136 in norms."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "hidden_size": 576,
                "intermediate_size": 1536,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "vocab_size": 49152,
            }
        )
    )
    shape = Shape.of(tmp_path, 16)
    assert (shape.body, shape.head, shape.width) == (
        134_515_008 - 28_311_552 - 35_136,
        28_311_552,
        576,
    )
    assert shape.lora == 16 * 30 * (2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536))


def test_a_shared_prefix_is_counted_once() -> None:
    rows = [np.array([7, 8, 1, 2]), np.array([7, 8, 3]), np.array([8, 8])]
    masks = [
        np.array([False, True, True, True]),
        np.array([False, True, True]),
        np.array([True, False]),
    ]
    assert TokenCounts.plain(rows, masks) == TokenCounts(tokens=9, scored=6, attended=10 + 6 + 3)
    # the prefixes 7 and 7 8 are shared by two rows; the third row starts differently
    assert TokenCounts.shared(rows, masks) == TokenCounts(tokens=7, scored=5, attended=10 + 3 + 3)


def test_training_takes_four_flops_per_weight_and_token() -> None:
    shape = Shape(layers=2, width=3, body=100, head=10, lora=5)
    counts = TokenCounts(tokens=6, scored=2, attended=20)
    assert counts.training(shape) == 4 * 100 * 6 + 4 * 10 * 2 + 12 * 3 * 2 * 20 + 6 * 5 * 6
    all_weights = 6 * 100 * 6 + 6 * 10 * 2 + 12 * 3 * 2 * 20
    assert counts.training(shape, full=True) == all_weights
    assert counts.forward(shape) == 2 * 100 * 6 + 2 * 10 * 2 + 4 * 3 * 2 * 20

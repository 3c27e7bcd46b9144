"""Medians, ratios and FLOP counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.bench.figures import Figure, Ratio
from tests.bench.flops import Counted, Shape


def test_a_figure_is_the_median_and_the_quartiles() -> None:
    assert Figure.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Figure(3.0, 2.0, 4.0)
    assert Figure.of([1234.5]).shown() == "1,234.50 [1,234.50–1,234.50]"


def test_a_ratio_is_of_medians_and_its_spread_is_over_pairs() -> None:
    ratio = Ratio.of([4.0, 9.0, 2.0], [2.0, 3.0, 2.0])
    assert ratio.of_medians == 2.0
    assert ratio.pairs == Figure(2.0, 1.5, 2.5)
    with pytest.raises(ValueError, match="zip"):
        Ratio.of([1.0, 2.0], [1.0])


def test_a_shape_counts_the_weights_of_the_model(tmp_path: Path) -> None:
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


def test_a_shared_prefix_counts_once() -> None:
    rows = [np.array([7, 8, 1, 2]), np.array([7, 8, 3]), np.array([8, 8])]
    masks = [
        np.array([False, True, True, True]),
        np.array([False, True, True]),
        np.array([True, False]),
    ]
    assert Counted.plain(rows, masks) == Counted(tokens=9, scored=6, seen=10 + 6 + 3)
    # 7 8 and the position after it are in two rows; the 8 of the third row has another beginning
    assert Counted.shared(rows, masks) == Counted(tokens=7, scored=5, seen=10 + 3 + 3)


def test_work_is_four_per_weight_and_token() -> None:
    shape = Shape(layers=2, width=3, body=100, head=10, lora=5)
    counted = Counted(tokens=6, scored=2, seen=20)
    assert counted.training(shape) == 4 * 100 * 6 + 4 * 10 * 2 + 12 * 3 * 2 * 20 + 6 * 5 * 6
    assert counted.forward(shape) == 2 * 100 * 6 + 2 * 10 * 2 + 4 * 3 * 2 * 20

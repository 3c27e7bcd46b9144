"""Packed sequences for tests of attention, and the attention of each by torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from adapters.peft.batching.packed_layout import PackedLayout
from kitchen.types import Array

RNG = np.random.default_rng(5)
START = RNG.integers(0, 90, 150)


def sequences(*ends: tuple[int, int]) -> list[Array]:
    """Return sequences, given by their numbers of tokens of `START` and of other tokens."""
    return [
        np.concatenate([START[:shared], RNG.integers(100 * (i + 1), 100 * (i + 2), own)])
        for i, (shared, own) in enumerate(ends)
    ]


CASES = {
    "one": sequences((0, 7)),
    "unequal": sequences((0, 7), (0, 40), (0, 11), (0, 1), (0, 38)),
    "several tiles": sequences((0, 300), (0, 129), (0, 500)),
    "shared": sequences((40, 9), (40, 30), (100, 20), (100, 0), (0, 25)),
    "shared, several tiles": sequences((150, 200), (150, 10), (150, 131), (20, 260)),
    "identical": [START, START, START],
    "long": sequences((150, 950), (100, 600)),
}


def inputs(
    count: int, heads: int, groups: int, width: int = 8, values: int = 8
) -> list[torch.Tensor]:
    """Query, key, value and a gradient, all in float64."""
    generator = torch.Generator().manual_seed(count)
    shapes = (heads, width), (groups, width), (groups, values), (heads, values)
    return [
        torch.randn(count, *shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]


def plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lies: PackedLayout, scale: float
) -> torch.Tensor:
    """(N, H, D): each token's state as the sequence that it is first in gives it."""
    states = []
    for places, start in zip(lies.slots, lies.shared_lengths, strict=True):
        mine = [x[places].transpose(0, 1)[None] for x in (query, key, value)]
        attended: Any = scaled_dot_product_attention(
            mine[0], mine[1], mine[2], is_causal=True, scale=scale, enable_gqa=True
        )
        states.append(attended[0].transpose(0, 1)[start:])
    return torch.cat(states)

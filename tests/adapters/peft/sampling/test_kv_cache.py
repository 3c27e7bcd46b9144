"""KV grids: the grouping of prompts, and attention against a softmax for each head by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adapters.peft.sampling.kv_cache import HeadLayout, KVGrid, group_prompts

# the scale is not the kernel's default of 0.5
HEADS = HeadLayout(query_heads=6, kv_heads=2, head_dim=4, scale=0.9)
LAYERS = 2
TOKENS = 3  # of each completion


@pytest.mark.parametrize("sdpa_devices", [{"cpu"}, set[str]()], ids=["fused kernel", "products"])
@pytest.mark.parametrize(
    ("rows", "lengths"), [([[0], [1]], (5, 3)), ([[0], [1]], (4, 4)), ([[0, 2], [1, -1]], (5, 3))]
)
def test_grids_attend_like_separate_heads(
    rows: list[list[int]], lengths: tuple[int, ...], sdpa_devices: set[str]
) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = np.array(rows)
    count = int(numbers.max()) + 1
    grid = KVGrid(HEADS, LAYERS, numbers, lengths, torch.empty(0), sdpa_devices)
    shape = (LAYERS, len(lengths), max(lengths), 2 * HEADS.kv_heads, HEADS.head_dim)
    prompt_kv = torch.randn(*shape, generator=generator)
    for layer in range(LAYERS):
        grid.write_prompts(layer, [0, 1], prompt_kv[layer])
    completion_kv = [list[torch.Tensor]() for _ in range(LAYERS)]
    for _ in range(TOKENS):
        grid.reserve_token()
        for layer in range(LAYERS):
            shape_qkv = (count, HEADS.query_heads + 2 * HEADS.kv_heads, HEADS.head_dim)
            qkv = torch.randn(*shape_qkv, generator=generator)
            completion_kv[layer].append(qkv[:, HEADS.query_heads :])
            attended = grid.attend(layer, qkv)
            assert sorted(grid.output_index[0]) == list(range(count))
            assert grid.find_row(count) is None
            for row, places in zip(*grid.output_index, strict=True):
                cell = grid.find_row(row)
                assert cell is not None
                assert numbers[cell] == row
                own = [kv[row, None] for kv in completion_kv[layer]]
                visible = torch.cat([prompt_kv[layer, cell[0], : lengths[cell[0]]], *own])
                expected = attend_by_head(qkv[row, : HEADS.query_heads], visible)
                torch.testing.assert_close(attended[places], expected)
                torch.testing.assert_close(grid.sequence_kv(*cell)[layer], visible, atol=0, rtol=0)


def attend_by_head(queries: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Map (queries, D), and (S, 2 · groups, D) keys and values, to (queries, D)."""
    keys, values = (half.repeat_interleave(HEADS.heads_per_kv, 1) for half in visible.chunk(2, 1))
    weights = torch.softmax(HEADS.scale * torch.einsum("hd,shd->hs", queries, keys), -1)
    return torch.einsum("hs,shd->hd", weights, values)


lengths_and_counts = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(1, 40)), min_size=1, max_size=12
)


@given(lengths_and_counts)
def test_grouping_has_every_row_once_and_little_padding(sizes: list[tuple[int, int]]) -> None:
    prompts = [
        np.full(length, number)
        for number, (length, count) in enumerate(sizes)
        for _ in range(count)
    ]
    order = np.random.default_rng(0).permutation(len(prompts))
    shuffled = [prompts[place] for place in order]
    grids = group_prompts(shuffled)
    rows = [number for grid in grids for number in grid[grid >= 0]]
    assert sorted(rows) == list(range(len(prompts)))
    for grid in grids:
        lengths = [len(shuffled[first]) for first in grid[:, 0]]
        assert len(lengths) * max(lengths) <= 1.3 * sum(lengths) + 1024
        for line in grid:
            assert len({shuffled[number].tobytes() for number in line[line >= 0]}) == 1

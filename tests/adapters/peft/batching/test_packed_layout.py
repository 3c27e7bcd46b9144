"""Properties of packed layouts and of packing: every token has a slot and attends to its past."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.peft.batching.packed_layout import (
    TILING,
    PackedLayout,
    TileBatch,
    TilingConfig,
    build_layout,
)
from adapters.peft.batching.packing import NO_SHARING, pack
from kitchen.types import Array

CPU = torch.device("cpu")


@st.composite
def prefix_groups(draw: st.DrawFn, longest: int = 60) -> list[Array]:
    """Sequences of three letters: prefixes of each other, equal ones, and ones that diverge."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    trunks = [rng.integers(0, 3, longest) for _ in range(draw(st.integers(1, 3)))]
    shapes = st.tuples(st.sampled_from(trunks), st.integers(0, longest), st.integers(0, longest))
    sequences = [
        np.concatenate([trunk[:kept], rng.integers(0, 3, own)])
        for trunk, kept, own in draw(st.lists(shapes, min_size=1, max_size=9))
    ]
    return [tokens if len(tokens) else trunks[0][:1] for tokens in sequences]


leasts = st.sampled_from([1, 2, 16, NO_SHARING])


def alike(before: Array, after: Array, least: int) -> int:
    """Token by token, as a child would."""
    count = 0
    while count < min(len(before), len(after)) and before[count] == after[count]:
        count += 1
    return count if count >= least else 0


def attended(tiles: TileBatch) -> list[tuple[int, frozenset[int]]]:
    """Each query that is no padding, and where the keys lie that it may attend to."""
    rows, columns = np.unravel_index(tiles.real_queries.numpy(), tuple(tiles.query_slots.shape))
    return [
        (int(lies), frozenset(tiles.key_slots[row][tiles.mask[row, column]].tolist()))
        for lies, row, column in zip(tiles.real_query_slots.tolist(), rows, columns, strict=True)
    ]


def check(layout: PackedLayout, sequences: Sequence[Array], least: int) -> None:
    before: dict[int, frozenset[int]] = {}
    end = 0
    for index, (tokens, places, start) in enumerate(
        zip(sequences, layout.slots, layout.shared_lengths, strict=True)
    ):
        np.testing.assert_array_equal(layout.ids[places], tokens)
        np.testing.assert_array_equal(layout.positions[places], np.arange(len(tokens)))
        assert start == (alike(sequences[index - 1], tokens, least) if index else 0)
        np.testing.assert_array_equal(places[:start], layout.slots[index - 1][:start])
        np.testing.assert_array_equal(
            places[start:], np.arange(end, end := end + len(tokens) - start)
        )
        before |= {
            int(place): frozenset(places[: at + 1].tolist()) for at, place in enumerate(places)
        }
    assert len(layout.ids) == len(layout.positions) == end
    seen = [pair for tiles in layout.tiles for pair in attended(tiles)]
    assert len(seen) == end
    assert dict(seen) == before


@given(prefix_groups(), leasts)
@settings(max_examples=120)
def test_tokens_attend_to_their_own_past(sequences: list[Array], least: int) -> None:
    check(build_layout(sequences, CPU, least), sequences, least)


@pytest.mark.parametrize(("tokens", "most"), [(200, 200), (1000, 250), (4000, 128)])
def test_tiles_shrink_with_many_keys(tokens: int, most: int) -> None:
    layout = build_layout([np.arange(tokens)], CPU, tiling=TilingConfig(512, 250_000, 4.0))
    assert max(tiles.query_slots.shape[1] for tiles in layout.tiles) <= most
    assert len(attended(layout.tiles[-1])) > most / 2


@given(prefix_groups(longest=400), leasts)
@settings(max_examples=20)
def test_long_sequences_attend_to_their_own_past(sequences: list[Array], least: int) -> None:
    check(build_layout(sequences, CPU, least), sequences, least)


@given(prefix_groups(longest=400), leasts)
@settings(max_examples=20)
def test_tiles_have_little_padding_and_correct_runs(sequences: list[Array], least: int) -> None:
    for tiles in build_layout(sequences, CPU, least).tiles:
        rows, queries, keys = tiles.mask.shape
        real = (
            torch.zeros(rows * queries, dtype=torch.bool)
            .index_fill_(0, tiles.real_queries, True)
            .view(rows, queries)
        )
        assert (
            (tiles.query_padding is None) if real.all() else torch.equal(real, ~tiles.query_padding)
        )  # type: ignore[operator]
        reached = (tiles.mask & real[:, :, None]).any(1)  # (B, S)
        covered = torch.zeros_like(reached)
        for row, first, lies, length in tiles.key_runs:
            assert tiles.key_slots[row, first : first + length].tolist() == list(
                range(lies, lies + length)
            )
            assert not covered[row, first : first + length].any()
            covered[row, first : first + length] = True
        assert torch.equal(covered, reached)
        assert rows * queries * keys <= TILING["cpu"].max_padding * int(
            (real.sum(1) * reached.sum(1)).sum()
        )


def test_bias_masks_every_head_alike() -> None:
    [tiles] = build_layout([np.arange(5), np.arange(10, 16)], CPU).tiles
    bias = tiles.bias(2, 3, torch.float64)
    assert bias.dtype == torch.float64
    for allowed, mine in zip(tiles.mask, bias.view(2, 2, 3, *tiles.mask.shape[1:]), strict=True):
        assert (mine == torch.where(allowed, 0.0, -torch.inf)).all()


@pytest.mark.parametrize(("keys", "cached"), [(11, True), (1024, True), (1025, False)])
def test_biases_of_many_keys_are_not_cached(keys: int, cached: bool) -> None:
    tiles = build_layout([np.arange(keys)], CPU).tiles[-1]
    assert tiles.key_slots.shape[1] == keys
    first, second = (tiles.bias(2, 3, torch.float64) for _ in range(2))
    assert (first is second) is cached
    assert torch.equal(first, second)


def added(sequences: Sequence[Array], batch: Sequence[int], least: int) -> int:
    """Tokens that a batch has, what its neighbours begin with alike counted once."""
    first = len(sequences[batch[0]])
    return first + sum(
        len(sequences[b]) - alike(sequences[a], sequences[b], least) for a, b in pairwise(batch)
    )


@given(prefix_groups(), leasts, st.integers(1, 4), st.integers(1, 400))
@settings(max_examples=150)
def test_batches_keep_runs_together_and_stay_within_the_budget(
    sequences: list[Array], least: int, group: int, budget: int
) -> None:
    packed = pack(sequences, budget, group=group, min_shared=least)
    runs = [
        tuple(range(start, min(start + group, len(sequences))))
        for start in range(0, len(sequences), group)
    ]
    batches = list[tuple[int, ...]]()
    for batch in packed:
        mine = [run for run in runs if run[0] in batch]
        mine.sort(key=lambda run: batch.index(run[0]))
        assert sum(mine, ()) == batch
        assert len(mine) == 1 or added(sequences, batch, least) <= budget
        batches += mine
    assert sorted(batches) == runs


@pytest.mark.parametrize("shared", [0, 20, 150])
def test_lanes_are_balanced(shared: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        beginning = rng.integers(0, 500, shared)
        lengths = np.exp(rng.uniform(np.log(64), np.log(512), 8)).astype(int)
        sequences = [
            np.concatenate([beginning, rng.integers(0, 500, length)]) for length in lengths
        ]
        packed = pack(sequences, 1024, lanes=2)
        lanes = [sum(added(sequences, batch, 16) for batch in packed[lane::2]) for lane in range(2)]
        assert max(lanes) <= 1.1 * (sum(lengths) + shared * len(packed)) / 2


def test_only_large_prefix_groups_are_split() -> None:
    rng = np.random.default_rng(2)
    one, two = (rng.integers(0, 500, 256) for _ in range(2))
    alone = [np.concatenate([one, rng.integers(0, 500, 64)]) for _ in range(8)]
    both = alone + [np.concatenate([two, rng.integers(0, 500, 64)]) for _ in range(8)]
    assert sorted(map(sorted, pack(both, 1024, lanes=2))) == [list(range(8)), list(range(8, 16))]
    assert sorted(map(len, pack(alone, 1024, lanes=2))) == [4, 4]


@given(prefix_groups())
@settings(max_examples=80)
def test_common_prefixes_are_adjacent(sequences: list[Array]) -> None:
    """Each prefix is packed once: as many tokens as a trie of the sequences has nodes."""
    [batch] = pack(sequences, 10**6, min_shared=1)
    nodes = {
        tuple(tokens[: end + 1].tolist()) for tokens in sequences for end in range(len(tokens))
    }
    assert added(sequences, batch, 1) == len(nodes)
    assert len(build_layout([sequences[index] for index in batch], CPU, 1).ids) == len(nodes)


@pytest.mark.parametrize("times", [2, 7])
def test_identical_sequences_are_packed_once(times: int) -> None:
    tokens = np.arange(200)
    [batch] = pack([tokens] * times, 200)
    layout = build_layout([tokens] * len(batch), CPU)
    assert len(layout.ids) == 200
    assert layout.shared_lengths == (0, *[200] * (times - 1))

"""Prefix groups: sequences that one lane computes together, cut into micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.peft.batching.packing import MIN_SHARED
from adapters.peft.batching.prefix_groups import (
    MAX_MICRO_BATCHES,
    MIN_CARRIED,
    PrefixGroup,
    group_by_prefix,
)
from kitchen.types import Array


def groups(*sizes: tuple[int, int, int], system: int = 0) -> list[Array]:
    """Return (T,) ids for each (completions, prompt tokens, completion tokens), shuffled."""
    rng = np.random.default_rng(0)
    first, sequences = rng.integers(0, 9999, system), []
    for count, prompt, length in sizes:
        begins = np.concatenate([first, rng.integers(0, 9999, prompt)])
        sequences += [np.concatenate([begins, rng.integers(0, 9999, length)]) for _ in range(count)]
    return [sequences[at] for at in rng.permutation(len(sequences))]


def both(
    sequences: list[Array], budget: int, lanes: int = 2
) -> tuple[list[PrefixGroup], list[PrefixGroup]]:
    return group_by_prefix(
        sequences, budget, min_shared=MIN_SHARED, lanes=lanes, carries_prefix=True
    )


def of(sequences: list[Array], budget: int, lanes: int = 2) -> list[PrefixGroup]:
    """Return the groups that carry a prefix; there are no others."""
    prefix_groups, alone = both(sequences, budget, lanes)
    assert not alone
    return prefix_groups


def tokens(sequences: list[Array], group: PrefixGroup) -> int:
    """Return the tokens of a group, its prefix once; every micro-batch begins with the prefix."""
    shared = group.prefix_length
    total = shared
    for run in group.micro_batches:
        beginnings = set[bytes]()  # one for each distinct token after the prefix
        for at in run:
            sequence = sequences[at]
            assert np.array_equal(sequence[:shared], sequences[run[0]][:shared])
            beginnings.update(
                sequence[:end].tobytes() for end in range(shared + 1, len(sequence) + 1)
            )
        total += len(beginnings)
    return total


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize(
    "sizes",
    [
        [(8, 256, 300)],
        [(8, 256, 300)] * 2,
        [(8, 256, 300)] * 3,
        [(8, 256, 64)] * 2,
        [(3, 20, 400)] * 3,
        [(8, 100, 200), (2, 100, 900), (1, 50, 50), (40, 70, 10)],
        [(1, 10, 2000)],
        [(2, 900, 0)],
    ],
)
def test_groups_cover_all_sequences_within_budget(
    sizes: list[tuple[int, int, int]], lanes: int
) -> None:
    sequences = groups(*sizes)
    prefix_groups, alone = both(sequences, 768, lanes)
    runs = [run for group in (*prefix_groups, *alone) for run in group.micro_batches]
    assert sorted(at for run in runs for at in run) == list(range(len(sequences)))
    assert all(
        group.prefix_length >= MIN_CARRIED or len(group.micro_batches) <= 1
        for group in prefix_groups
    )
    assert all(len(group.micro_batches) <= MAX_MICRO_BATCHES for group in prefix_groups)
    assert all(group.prefix_length == 0 and len(group.micro_batches) == 1 for group in alone)
    assert len(prefix_groups) % lanes == 0
    for group in (*prefix_groups, *alone):
        for run in group.micro_batches:
            beside = (
                tokens(sequences, PrefixGroup((run,), group.prefix_length)) - group.prefix_length
            )
            assert len(run) == 1 or beside <= (768 if group.prefix_length <= 384 else 384)


def test_a_prompt_is_computed_once_per_group() -> None:
    sequences = groups((8, 256, 300), (8, 256, 300))
    prefix_groups = of(sequences, 768)
    assert [group.prefix_length for group in prefix_groups] == [256, 256]
    assert [tokens(sequences, group) for group in prefix_groups] == [256 + 8 * 300] * 2


def test_a_single_group_is_split_between_lanes() -> None:
    sequences = groups((8, 256, 300))
    prefix_groups = of(sequences, 768)
    assert [tokens(sequences, group) for group in prefix_groups] == [256 + 4 * 300] * 2
    assert [tokens(sequences, group) for group in of(sequences, 768, lanes=1)] == [256 + 8 * 300]


def test_three_groups_are_balanced() -> None:
    prefix_groups = of(sequences := groups(*[(8, 256, 300)] * 3), 768)
    lanes = [sum(tokens(sequences, group) for group in prefix_groups[lane::2]) for lane in (0, 1)]
    assert lanes == [256 + 8 * 300 + 256 + 4 * 300] * 2


def test_the_most_useful_nested_prefix_is_carried() -> None:
    """A system prompt and a question behind it, each with completions."""
    long, short = groups(*[(8, 300, 300)] * 4, system=100), groups(*[(2, 70, 300)] * 8, system=400)
    assert [group.prefix_length for group in of(long, 768)] == [400] * 4
    assert {group.prefix_length for group in of(short, 768)} == {400}


def test_short_prefixes_are_not_carried() -> None:
    for sequences in (
        groups((8, 256, 64)),
        groups((8, MIN_CARRIED - 1, 300)),
        groups(*[(1, 500, 100)] * 6),
    ):
        prefix_groups, alone = both(sequences, 768)
        assert not prefix_groups
        assert sorted(at for group in alone for run in group.micro_batches for at in run) == list(
            range(len(sequences))
        )


def test_grouped_losses_and_other_modes_carry_no_prefix() -> None:
    sequences = groups((8, 256, 300))
    for how in ({"group": 2, "carries_prefix": True}, {"group": 1, "carries_prefix": False}):
        prefix_groups, alone = group_by_prefix(
            sequences, 768, min_shared=MIN_SHARED, lanes=2, **how
        )  # type: ignore[arg-type]
        assert not prefix_groups
        assert len(alone) > 1


def test_nested_prefixes_do_not_recurse_deeply() -> None:
    """Two thousand sequences, each of which begins like the one before it, and goes on."""
    ids = np.arange(5000)
    prefix_groups, alone = both([ids[:length] for length in range(100, 4100, 2)], 768)
    runs = [run for group in (*prefix_groups, *alone) for run in group.micro_batches]
    assert sorted(at for run in runs for at in run) == list(range(2000))


def test_a_prefix_group_is_split_by_tokens() -> None:
    rng, prompt = np.random.default_rng(1), np.arange(256)
    sequences = [
        np.concatenate([prompt, [place], rng.integers(0, 9999, length)])
        for place, length in enumerate([50] * 4 + [1000] * 4)
    ]
    prefix_groups = of(sequences, 768)
    assert [sum(map(len, group.micro_batches)) for group in prefix_groups] == [6, 2]


def test_large_groups_are_split_so_others_can_run() -> None:
    sequences = groups((40, 256, 300))
    prefix_groups = of(sequences, 768)
    assert [len(group.micro_batches) for group in prefix_groups] == [8, 8, 2, 2]
    assert {group.prefix_length for group in prefix_groups} == {256}

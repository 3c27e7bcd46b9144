"""Which sequences a lane takes together, and in what bits."""

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
    """(T,) ids of so many completions of so many tokens after a prompt of so many, which all begin
    alike.
    """
    rng = np.random.default_rng(0)
    first, found = rng.integers(0, 9999, system), []
    for count, prompt, length in sizes:
        begins = np.concatenate([first, rng.integers(0, 9999, prompt)])
        found += [np.concatenate([begins, rng.integers(0, 9999, length)]) for _ in range(count)]
    return [found[at] for at in rng.permutation(len(found))]


def both(
    sequences: list[Array], budget: int, lanes: int = 2
) -> tuple[list[PrefixGroup], list[PrefixGroup]]:
    return group_by_prefix(
        sequences, budget, min_shared=MIN_SHARED, lanes=lanes, carries_prefix=True
    )


def of(sequences: list[Array], budget: int, lanes: int = 2) -> list[PrefixGroup]:
    """Those with something to carry, and nothing else is left over."""
    families, alone = both(sequences, budget, lanes)
    assert not alone
    return families


def tokens(sequences: list[Array], family: PrefixGroup) -> int:
    """That a family reads, what is carried once; every bit within it begins as it says."""
    total = family.prefix_length
    for run in family.micro_batches:
        assert all(
            np.array_equal(
                sequences[at][: family.prefix_length], sequences[run[0]][: family.prefix_length]
            )
            for at in run
        )
        total += len(
            {
                sequences[at][:end].tobytes()
                for at in run
                for end in range(family.prefix_length + 1, len(sequences[at]) + 1)
            }
        )
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
def test_every_sequence_is_there_once_and_each_bit_within_the_budget(
    sizes: list[tuple[int, int, int]], lanes: int
) -> None:
    sequences = groups(*sizes)
    families, alone = both(sequences, 768, lanes)
    runs = [run for family in (*families, *alone) for run in family.micro_batches]
    assert sorted(at for run in runs for at in run) == list(range(len(sequences)))
    assert all(
        family.prefix_length >= MIN_CARRIED or len(family.micro_batches) <= 1 for family in families
    )
    assert all(len(family.micro_batches) <= MAX_MICRO_BATCHES for family in families)
    assert all(family.prefix_length == 0 and len(family.micro_batches) == 1 for family in alone)
    assert len(families) % lanes == 0
    for family in (*families, *alone):
        for run in family.micro_batches:
            beside = (
                tokens(sequences, PrefixGroup((run,), family.prefix_length)) - family.prefix_length
            )
            assert len(run) == 1 or beside <= (768 if family.prefix_length <= 384 else 384)


def test_a_prompt_is_read_once_for_all_the_completions_of_a_group() -> None:
    sequences = groups((8, 256, 300), (8, 256, 300))
    found = of(sequences, 768)
    assert [family.prefix_length for family in found] == [256, 256]
    assert [tokens(sequences, family) for family in found] == [256 + 8 * 300] * 2


def test_one_group_alone_is_cut_for_the_lanes() -> None:
    sequences = groups((8, 256, 300))
    found = of(sequences, 768)
    assert [tokens(sequences, family) for family in found] == [256 + 4 * 300] * 2
    assert [tokens(sequences, family) for family in of(sequences, 768, lanes=1)] == [256 + 8 * 300]


def test_three_groups_are_shared_out_evenly() -> None:
    found = of(sequences := groups(*[(8, 256, 300)] * 3), 768)
    lanes = [sum(tokens(sequences, family) for family in found[lane::2]) for lane in (0, 1)]
    assert lanes == [256 + 8 * 300 + 256 + 4 * 300] * 2


def test_of_beginnings_in_beginnings_those_are_carried_that_save_most() -> None:
    """A system prompt and a question behind it, each with completions."""
    long, short = groups(*[(8, 300, 300)] * 4, system=100), groups(*[(2, 70, 300)] * 8, system=400)
    assert [family.prefix_length for family in of(long, 768)] == [400] * 4
    assert {family.prefix_length for family in of(short, 768)} == {400}


def test_what_shares_little_or_fits_is_packed_as_ever() -> None:
    for sequences in (
        groups((8, 256, 64)),
        groups((8, MIN_CARRIED - 1, 300)),
        groups(*[(1, 500, 100)] * 6),
    ):
        families, alone = both(sequences, 768)
        assert not families
        assert sorted(at for family in alone for run in family.micro_batches for at in run) == list(
            range(len(sequences))
        )


def test_runs_that_must_stay_together_and_models_that_carry_nothing_are_packed_as_ever() -> None:
    sequences = groups((8, 256, 300))
    for how in ({"group": 2, "carries_prefix": True}, {"group": 1, "carries_prefix": False}):
        families, alone = group_by_prefix(sequences, 768, min_shared=MIN_SHARED, lanes=2, **how)  # type: ignore[arg-type]
        assert not families
        assert len(alone) > 1


def test_ladders_do_not_run_deep() -> None:
    """Two thousand sequences, each of which begins like the one before it, and goes on."""
    ids = np.arange(5000)
    families, alone = both([ids[:length] for length in range(100, 4100, 2)], 768)
    runs = [run for family in (*families, *alone) for run in family.micro_batches]
    assert sorted(at for run in runs for at in run) == list(range(2000))


def test_a_group_is_cut_by_its_tokens() -> None:
    rng, prompt = np.random.default_rng(1), np.arange(256)
    sequences = [
        np.concatenate([prompt, [place], rng.integers(0, 9999, length)])
        for place, length in enumerate([50] * 4 + [1000] * 4)
    ]
    found = of(sequences, 768)
    assert [sum(map(len, family.micro_batches)) for family in found] == [6, 2]


def test_many_micro_batches_of_a_family_are_parted_for_others_to_have_their_turn() -> None:
    sequences = groups((40, 256, 300))
    found = of(sequences, 768)
    assert [len(family.micro_batches) for family in found] == [8, 8, 2, 2]
    assert {family.prefix_length for family in found} == {256}

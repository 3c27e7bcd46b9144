"""Which sequences a lane takes together, and in what bits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from adapters.peft.families import CARRIED, Family, gathered
from adapters.peft.packing import LEAST
from kitchen.types import Array


def groups(*sizes: tuple[int, int, int], system: int = 0) -> list[Array]:
    """(T,) ids of so many completions of so many tokens after a prompt of so many, which all begin alike."""
    rng = np.random.default_rng(0)
    first, found = rng.integers(0, 9999, system), []
    for count, prompt, length in sizes:
        begins = np.concatenate([first, rng.integers(0, 9999, prompt)])
        found += [np.concatenate([begins, rng.integers(0, 9999, length)]) for _ in range(count)]
    return [found[at] for at in rng.permutation(len(found))]


def of(sequences: list[Array], budget: int, lanes: int = 2) -> list[Family]:
    return gathered(sequences, budget, least=LEAST, lanes=lanes, carries=True)


def tokens(sequences: list[Array], family: Family) -> int:
    """That a family reads, what is carried once; every bit within it begins as it says."""
    total = family.begins
    for run in family.runs:
        assert all(np.array_equal(sequences[at][: family.begins], sequences[run[0]][: family.begins]) for at in run)
        total += len({sequences[at][:end].tobytes() for at in run for end in range(family.begins + 1,
                                                                                   len(sequences[at]) + 1)})
    return total


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("sizes", [
    [(8, 256, 300)], [(8, 256, 300)] * 2, [(8, 256, 300)] * 3, [(8, 256, 64)] * 2, [(3, 20, 400)] * 3,
    [(8, 100, 200), (2, 100, 900), (1, 50, 50), (40, 70, 10)], [(1, 10, 2000)], [(2, 900, 0)]])
def test_every_sequence_is_there_once_and_each_bit_within_the_budget(
    sizes: list[tuple[int, int, int]], lanes: int
) -> None:
    sequences = groups(*sizes)
    found = of(sequences, 768, lanes)
    assert sorted(at for family in found for run in family.runs for at in run) == list(range(len(sequences)))
    for family in found:
        assert family.begins == 0 or family.begins >= CARRIED
        for run in family.runs:
            assert len(run) == 1 or tokens(sequences, Family((run,), family.begins)) - family.begins <= 768


def test_a_prompt_is_read_once_for_all_the_completions_of_a_group() -> None:
    sequences = groups((8, 256, 300), (8, 256, 300))
    found = of(sequences, 768)
    assert [family.begins for family in found] == [256, 256]
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
    assert [family.begins for family in of(long, 768)] == [400] * 4
    assert {family.begins for family in of(short, 768)} == {400}


def test_what_shares_little_or_fits_is_packed_as_ever() -> None:
    for sequences in (groups((8, 256, 64)), groups((8, CARRIED - 1, 300)), groups(*[(1, 500, 100)] * 6)):
        assert {family.begins for family in of(sequences, 768)} == {0}


def test_runs_that_must_stay_together_and_models_that_carry_nothing_are_packed_as_ever() -> None:
    sequences = groups((8, 256, 300))
    for how in ({"group": 2, "carries": True}, {"group": 1, "carries": False}):
        found = gathered(sequences, 768, least=LEAST, lanes=2, **how)  # type: ignore[arg-type]
        assert {family.begins for family in found} == {0}
        assert all(len(family.runs) == 1 for family in found)


def test_ladders_do_not_run_deep() -> None:
    """Two thousand sequences, each of which begins like the one before it, and goes on."""
    ids = np.arange(5000)
    found = of([ids[:length] for length in range(100, 4100, 2)], 768)
    assert sum(len(run) for family in found for run in family.runs) == 2000
    for family in found:
        for one, other in pairwise(family.runs):
            assert set(one).isdisjoint(other)

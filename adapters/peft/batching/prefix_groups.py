"""Which sequences go through a lane together, and in what bits, where what begins alike is too long
to go at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from adapters.peft.batching.packing import Run, pack, rank, shared
from kitchen.types import Tokens

# tokens that micro-batches must begin with alike, for these to be read once for all of them
CARRIED = 64
MOST = 8  # micro-batches of a family
# times the least that neighbours have in common: where they have no more, they may go apart
NEAR = 1.25


@dataclass(frozen=True)
class Family:
    """Micro-batches that a lane takes one after the other; what all their sequences begin with is
    read once.
    """

    runs: tuple[Run, ...] = ()
    begins: int = 0  # tokens that are carried from one to the next


def gathered(
    sequences: Sequence[Tokens],
    budget: int,
    *,
    group: int = 1,
    least: int,
    lanes: int,
    carries: bool,
) -> tuple[list[Family], list[Family]]:
    """Those that have something to carry, and the others in micro-batches; of each, a lane takes
    every so-many-th.

    The others share less than CARRIED tokens, fit into a micro-batch together or must stay in runs:
    they are packed as `pack` does it.
    """
    families = _dealt(_Kin(sequences, budget), lanes) if carries and group == 1 else []
    mine = {index for family in families for run in family.runs for index in run}
    rest = [index for index in range(len(sequences)) if index not in mine]
    packed = pack(
        [sequences[index] for index in rest], budget, group=group, least=least, lanes=lanes
    )
    return families, [Family((tuple(rest[at] for at in run),)) for run in packed]


@dataclass(frozen=True)
class _Clan:
    """Neighbours in the order of `_Kin`, and where they are cut into micro-batches."""

    edges: tuple[int, ...]
    begins: int  # tokens that all have in common and that are carried; 0 where they go together
    tokens: int  # that are read, what is carried once


class _Kin:
    """Sequences in an order in which those that begin alike are neighbours."""

    def __init__(self, sequences: Sequence[Tokens], budget: int) -> None:
        self._budget = budget
        self._order = sorted(range(len(sequences)), key=lambda at: rank(sequences[at]))
        self._lengths = [len(sequences[at]) for at in self._order]
        self._alike = [
            0,
            *(
                shared(sequences[one], sequences[other], CARRIED)
                # of each, with the one before it
                for one, other in pairwise(self._order)
            ),
        ]

    def clans(self) -> list[_Clan]:
        """Those that are too long for one micro-batch, and begin alike."""
        found = self._apart(0, len(self._order)) if self._order else []
        return [clan for clan in found if clan.begins]

    def families(self, clan: _Clan) -> list[Family]:
        """Of at most MOST micro-batches, for others wait until one has gone through."""
        runs = [tuple(self._order[one:other]) for one, other in pairwise(clan.edges)]
        return [
            Family(tuple(runs[at : at + MOST]), clan.begins) for at in range(0, len(runs), MOST)
        ]

    def parts(self, clan: _Clan, lanes: int) -> list[_Clan]:
        """With as many tokens each, as far as that can be."""
        first, end = clan.edges[0], clan.edges[-1]
        ends = np.cumsum(
            [
                self._lengths[at] - (self._alike[at] if at > first else clan.begins)
                for at in range(first, end)
            ]
        )
        cuts = first + np.searchsorted(ends, ends[-1] * np.arange(1, lanes) / lanes) + 1
        return [self._whole(*part) for part in pairwise(sorted({first, end, *cuts.tolist()}))]

    def _apart(self, first: int, end: int) -> list[_Clan]:
        """Cut where they have least in common, if then there is less to read."""
        whole = self._whole(first, end)
        if whole.tokens <= self._budget or end - first == 1:
            return [whole]
        edges = [
            first,
            *(at for at in range(first + 1, end) if self._alike[at] <= NEAR * whole.begins),
            end,
        ]
        parts = [clan for part in pairwise(edges) for clan in self._apart(*part)]
        return (
            parts
            if not whole.begins or sum(part.tokens for part in parts) < whole.tokens
            else [whole]
        )

    def _whole(self, first: int, end: int) -> _Clan:
        """In as few micro-batches as the budget allows for what is not carried."""
        begins = min(self._alike[first + 1 : end], default=0)
        # that the one before does not have
        new = [self._lengths[at] - self._alike[at] for at in range(first, end)]
        new[0] = self._lengths[first] - begins
        total = begins + sum(new)
        if total <= self._budget:
            return _Clan((first, end), 0, total)
        # beside what is carried
        budget = self._budget if 2 * begins <= self._budget else self._budget // 2
        edges, size = [first], 0
        for at, own in enumerate(new, first):
            if size and size + own > budget:
                edges.append(at)
                size, own = 0, self._lengths[at] - begins
                total += self._alike[at] - begins
            size += own
        return _Clan((*edges, end), begins, total)


def _dealt(kin: _Kin, lanes: int) -> list[Family]:
    """The largest first, each to the lane that has least; some are cut for all lanes, as many as
    make it even.
    """
    clans = sorted(kin.clans(), key=lambda clan: -clan.tokens)
    tries = [
        _hands(
            [*clans[:whole], *(part for clan in clans[whole:] for part in kin.parts(clan, lanes))],
            lanes,
        )
        for whole in range(len(clans), max(len(clans) - lanes, -1), -1)
    ]
    best = min(tries, key=lambda hands: max(sum(clan.tokens for clan in hand) for hand in hands))
    hands = [[family for clan in hand for family in kin.families(clan)] for hand in best]
    return [
        hand[turn] if turn < len(hand) else Family()
        for turn in range(max(map(len, hands)))
        for hand in hands
    ]


def _hands(clans: Sequence[_Clan], lanes: int) -> list[list[_Clan]]:
    """What each lane takes."""
    hands = [list[_Clan]() for _ in range(lanes)]
    for clan in clans:
        min(hands, key=lambda hand: sum(each.tokens for each in hand)).append(clan)
    return hands

"""Batches cut to a budget of tokens, what several sequences begin with counted once."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from kitchen.types import Tokens

LEAST = 16  # tokens that a beginning must have to be shared
NEVER = 2**62  # as LEAST: every sequence stands alone
APART = (0.0, 0.25, 0.5, 2.0)  # of a run's tokens: neighbours that share less may go apart; to try
# of an even share of the tokens: limits to try for what stays together, beside the budget
EVEN = (1.0, 1.15, 1.3)

Run = tuple[int, ...]


def pack(
    sequences: Sequence[Tokens], budget: int, *, group: int = 1, least: int = LEAST, lanes: int = 1
) -> list[Run]:
    """Indices of the sequences of each micro-batch, those that begin alike next to each other.

    The tokens stay within `budget`, but for a single group that is larger by itself. Runs of
    `group` adjacent sequences stay together and in order. Of several ways to cut, the one whose
    slowest lane has the least to read, where each of `lanes` takes every so-many-th batch: what
    begins alike is read once if it stays together, but then it is hard to share out evenly.
    """
    keys = [rank(tokens) for tokens in sequences]
    starts = sorted(range(0, len(sequences), group), key=lambda start: keys[start])
    sizes = _Sizes(
        sequences,
        [tuple(range(start, min(start + group, len(sequences)))) for start in starts],
        least,
    )
    runs = range(len(starts))
    total = sizes.of(runs)
    count = -(-total // (budget * lanes)) * lanes
    while runs:
        limits = sorted({budget, *(min(budget, int(even * total / count) + 1) for even in EVEN)})
        tries = [
            _dealt(sizes, _pieces(sizes, apart, limit), count)
            for apart in APART
            for limit in limits
        ]
        fitting = [
            batches
            for batches in tries
            if all(len(b) == 1 or sizes.of(b) <= budget for b in batches)
        ]
        if fitting:
            best = min(fitting, key=lambda batches: _slowest(sizes, batches, lanes))
            return [tuple(index for run in batch for index in sizes.runs[run]) for batch in best]
        count += lanes * max(count // (16 * lanes), 1)
    return []


def rank(tokens: Tokens) -> bytes:
    """By which sequences are sorted, so that those that begin alike are neighbours."""
    return np.asarray(tokens).astype(">u4").tobytes()


def padded(lengths: Sequence[int], budget: int) -> list[Run]:
    """Indices of sequences of such lengths, cut where they come to more than a budget, each as long
    as the longest.

    A sequence that is longer by itself stands alone.
    """
    batches: list[list[int]] = []
    # the next is the longest of its batch
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if batches and lengths[index] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [tuple(batch) for batch in batches]


def shared(before: Tokens, after: Tokens, least: int = LEAST) -> int:
    """How many tokens two sequences begin with alike; 0 if less than `least`."""
    most = min(len(before), len(after))
    differ = np.flatnonzero(before[:most] != after[:most])
    alike = int(differ[0]) if len(differ) else most
    return alike if alike >= least else 0


class _Sizes:
    """How many tokens runs have, each by its place among them."""

    def __init__(self, sequences: Sequence[Tokens], runs: Sequence[Run], least: int) -> None:
        self.runs, self._sequences, self._least = runs, sequences, least
        self.alone = [
            sum(len(sequences[index]) for index in run)
            - sum(shared(sequences[index], sequences[index + 1], least) for index in run[:-1])
            for run in runs
        ]
        self._alike: dict[tuple[int, int], int] = {}

    def alike(self, before: int, run: int) -> int:
        """What a run has in common with one that it lies behind."""
        if (known := self._alike.get((before, run))) is None:
            pair = self._sequences[self.runs[before][-1]], self._sequences[self.runs[run][0]]
            known = self._alike[before, run] = shared(*pair, self._least)
        return known

    def of(self, runs: Sequence[int]) -> int:
        return sum(
            self.alone[run] - (self.alike(runs[at - 1], run) if at else 0)
            for at, run in enumerate(runs)
        )


def _pieces(sizes: _Sizes, apart: float, limit: int) -> list[Run]:
    """Runs that stay together, as neighbours that begin alike, up to a limit."""
    pieces: list[list[int]] = []
    size = 0
    for run, alone in enumerate(sizes.alone):
        alike = sizes.alike(run - 1, run) if pieces else 0
        if pieces and alike >= apart * alone and size + alone - alike <= limit:
            pieces[-1].append(run)
            size += alone - alike
        else:
            pieces.append([run])
            size = alone
    return [tuple(piece) for piece in pieces]


def _dealt(sizes: _Sizes, pieces: Sequence[Run], count: int) -> list[Run]:
    """The largest piece first, each to the batch that has least (Graham, 1969: at most 4/3 of the
    best).
    """
    batches: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, place) for place in range(count)]
    for size, piece in sorted(
        ((sizes.of(piece), piece) for piece in pieces), key=lambda pair: (-pair[0], pair[1])
    ):
        load, place = heapq.heappop(heap)
        batches[place] += piece
        heapq.heappush(heap, (load + size, place))
    return [tuple(sorted(batch)) for batch in batches if batch]


def _slowest(sizes: _Sizes, batches: Sequence[Run], lanes: int) -> int:
    """Tokens of the lane that has most to read."""
    return max(
        sum(sizes.of(batch) for batch in batches[lane::lanes])
        for lane in range(min(lanes, len(batches)))
    )

"""Packing of sequences into micro-batches within a token budget; a shared prefix counts once."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain

import numpy as np

from kitchen.types import Tokens

MIN_SHARED = 16  # tokens; shorter common prefixes are not shared
NO_SHARING = 2**62  # as the minimum length: every sequence is computed in full
# Neighbouring runs may be separated if they share less than this part of the next run's tokens;
# all of these are tried.
SPLIT_RATIOS = (0.0, 0.25, 0.5, 2.0)
# Limits to try for what stays together, as multiples of an even share of the tokens; the budget
# itself is tried too.
SHARE_RATIOS = (1.0, 1.15, 1.3)

Indices = tuple[int, ...]


def pack(
    sequences: Sequence[Tokens],
    budget: int,
    *,
    group: int = 1,
    min_shared: int = MIN_SHARED,
    lanes: int = 1,
) -> list[Indices]:
    """Return the indices of the sequences of each micro-batch, those with a common prefix adjacent.

    A micro-batch has at most `budget` tokens, unless it is a single group that is larger. Runs
    of `group` adjacent sequences stay together and in order. A shared prefix is computed once if
    its sequences stay together, but then the work is hard to balance: several ways to split are
    tried, and the one whose slowest lane has the fewest tokens is returned. Lane i of `lanes` takes
    micro-batches i, i + lanes, i + 2 · lanes, ...
    """
    keys = [sort_key(tokens) for tokens in sequences]
    starts = sorted(range(0, len(sequences), group), key=lambda start: keys[start])
    runs = [tuple(range(start, min(start + group, len(sequences)))) for start in starts]
    counts = _TokenCounts(sequences, runs, min_shared)
    total = counts.packed(range(len(runs)))
    batch_count = -(-total // (budget * lanes)) * lanes
    while runs:
        candidates = _candidates(counts, budget, total, batch_count)
        if candidates:
            best = min(candidates, key=lambda batches: _slowest_lane(counts, batches, lanes))
            return [_indices(runs, batch) for batch in best]
        batch_count += lanes * max(batch_count // (16 * lanes), 1)
    return []


def _indices(runs: Sequence[Indices], batch: Indices) -> Indices:
    """Return the indices of the sequences in a batch of runs."""
    return tuple(chain.from_iterable(runs[run] for run in batch))


def sort_key(tokens: Tokens) -> bytes:
    """Return a key by which sequences sort such that those with a common prefix are adjacent."""
    return np.asarray(tokens).astype(">u4").tobytes()


def pack_padded(lengths: Sequence[int], budget: int) -> list[Indices]:
    """Return the indices of each batch of sequences that are padded to the longest of the batch.

    A batch has at most `budget` tokens, padding included, unless it is one longer sequence.
    """
    batches: list[list[int]] = []
    # in ascending order, so that the next sequence is the longest of its batch
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if batches and lengths[index] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [tuple(batch) for batch in batches]


def shared_prefix_length(first: Tokens, second: Tokens, min_shared: int = MIN_SHARED) -> int:
    """Return the length of the common prefix in tokens; 0 if it is shorter than `min_shared`."""
    shorter = min(len(first), len(second))
    differences = np.flatnonzero(first[:shorter] != second[:shorter])
    length = int(differences[0]) if len(differences) else shorter
    return length if length >= min_shared else 0


class _TokenCounts:
    """Token counts of runs of sequences, where a prefix shared with the run before counts once."""

    def __init__(
        self, sequences: Sequence[Tokens], runs: Sequence[Indices], min_shared: int
    ) -> None:
        self._runs = runs
        self._sequences = sequences
        self._min_shared = min_shared
        self.run_tokens = [self._count(run) for run in runs]  # tokens of each run by itself
        self._shared: dict[tuple[int, int], int] = {}

    def shared(self, before: int, run: int) -> int:
        """Return how many tokens a run shares with the run packed directly before it."""
        if (length := self._shared.get((before, run))) is None:
            last = self._sequences[self._runs[before][-1]]
            first = self._sequences[self._runs[run][0]]
            length = shared_prefix_length(last, first, self._min_shared)
            self._shared[before, run] = length
        return length

    def packed(self, runs: Sequence[int]) -> int:
        """Return how many tokens some runs have when they are packed together in this order."""
        total = 0
        for at, run in enumerate(runs):
            total += self.run_tokens[run] - (self.shared(runs[at - 1], run) if at else 0)
        return total

    def _count(self, run: Indices) -> int:
        total = sum(len(self._sequences[index]) for index in run)
        for index in run[:-1]:
            pair = self._sequences[index], self._sequences[index + 1]
            total -= shared_prefix_length(*pair, self._min_shared)
        return total


def _candidates(
    counts: _TokenCounts, budget: int, total: int, batch_count: int
) -> list[list[Indices]]:
    """Return ways to split into at most `batch_count` batches, none of which exceeds the budget."""
    limits = {budget}
    limits |= {min(budget, int(ratio * total / batch_count) + 1) for ratio in SHARE_RATIOS}
    candidates = []
    for split_ratio in SPLIT_RATIOS:
        for limit in sorted(limits):
            pieces = _pieces(counts, split_ratio, limit)
            batches = _assign_to_batches(counts, pieces, batch_count)
            if all(len(batch) == 1 or counts.packed(batch) <= budget for batch in batches):
                candidates.append(batches)
    return candidates


def _pieces(counts: _TokenCounts, split_ratio: float, limit: int) -> list[Indices]:
    """Return pieces of adjacent runs that share enough to stay together, up to a limit."""
    pieces: list[list[int]] = []
    size = 0
    for run, tokens in enumerate(counts.run_tokens):
        shared = counts.shared(run - 1, run) if pieces else 0
        if pieces and shared >= split_ratio * tokens and size + tokens - shared <= limit:
            pieces[-1].append(run)
            size += tokens - shared
        else:
            pieces.append([run])
            size = tokens
    return [tuple(piece) for piece in pieces]


def _assign_to_batches(
    counts: _TokenCounts, pieces: Sequence[Indices], batch_count: int
) -> list[Indices]:
    """Assign the largest piece first, each to the batch with the fewest tokens.

    At most 4/3 of the optimum (Graham, 1969).
    """
    batches: list[list[int]] = [[] for _ in range(batch_count)]
    heap = [(0, number) for number in range(batch_count)]
    sized = [(counts.packed(piece), piece) for piece in pieces]
    for size, piece in sorted(sized, key=lambda pair: (-pair[0], pair[1])):
        load, number = heapq.heappop(heap)
        batches[number] += piece
        heapq.heappush(heap, (load + size, number))
    return [tuple(sorted(batch)) for batch in batches if batch]


def _slowest_lane(counts: _TokenCounts, batches: Sequence[Indices], lanes: int) -> int:
    """Return the tokens of the lane that has the most to compute."""
    loads = [0] * min(lanes, len(batches))
    for number, batch in enumerate(batches):
        loads[number % lanes] += counts.packed(batch)
    return max(loads)

"""Prefix groups: sequences with a long common prefix that need more than one micro-batch.

One lane computes the micro-batches of a group one after the other, and the common prefix once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest

import numpy as np

from adapters.peft.batching.packing import Indices, pack, shared_prefix_length, sort_key
from kitchen.types import Tokens

MIN_CARRIED = 64  # tokens; shorter common prefixes are not carried between micro-batches
MAX_MICRO_BATCHES = 8  # of a group
# Neighbours may be separated where they share at most this many times the shortest shared prefix.
SPLIT_RATIO = 1.25


@dataclass(frozen=True)
class PrefixGroup:
    """Micro-batches that one lane computes in order, their common prefix once."""

    micro_batches: tuple[Indices, ...] = ()
    prefix_length: int = 0  # tokens that are carried from one micro-batch to the next

    def of(self, members: Sequence[int]) -> PrefixGroup:
        """Return the group with the indices that the members of a part have in the batch."""
        batches = []
        for batch in self.micro_batches:
            batches.append(tuple(members[at] for at in batch))
        return PrefixGroup(tuple(batches), self.prefix_length)


def group_by_prefix(
    sequences: Sequence[Tokens],
    budget: int,
    *,
    group: int = 1,
    min_shared: int,
    lanes: int,
    carries_prefix: bool,
) -> tuple[list[PrefixGroup], list[PrefixGroup]]:
    """Return the groups that carry a prefix, and the other sequences as single micro-batches.

    In both lists lane i takes items i, i + lanes, i + 2 · lanes, ... The other sequences share
    fewer than MIN_CARRIED tokens, fit into one micro-batch or must stay in runs of `group`: they
    are packed by `pack`.
    """
    groups: list[PrefixGroup] = []
    if carries_prefix and group == 1:
        groups = assign_to_lanes(_PrefixOrder(sequences, budget), lanes)
    batches = chain.from_iterable(prefix_group.micro_batches for prefix_group in groups)
    grouped = set(chain.from_iterable(batches))
    others = [index for index in range(len(sequences)) if index not in grouped]
    packed = pack(
        [sequences[index] for index in others],
        budget,
        group=group,
        min_shared=min_shared,
        lanes=lanes,
    )
    singles = []
    for batch in packed:
        indices = tuple(others[at] for at in batch)
        singles.append(PrefixGroup((indices,)))
    return groups, singles


@dataclass(frozen=True)
class _PrefixSpan:
    """Neighbours in a `_PrefixOrder`, and where they are split into micro-batches."""

    edges: tuple[int, ...]
    prefix_length: int  # tokens common to all and carried; 0 where one micro-batch holds them all
    tokens: int  # to compute, those of the carried prefix once


class _PrefixOrder:
    """Sequences sorted such that those with a common prefix are adjacent."""

    def __init__(self, sequences: Sequence[Tokens], budget: int) -> None:
        self._budget = budget
        self._order = sorted(range(len(sequences)), key=lambda at: sort_key(sequences[at]))
        self._lengths = [len(sequences[at]) for at in self._order]
        # tokens that each shares with the one before it
        self._shared = [0]
        for before, index in pairwise(self._order):
            length = shared_prefix_length(sequences[before], sequences[index], MIN_CARRIED)
            self._shared.append(length)

    def spans(self) -> list[_PrefixSpan]:
        """Return the spans that share a prefix and are too long for one micro-batch."""
        spans = self._split(0, len(self._order)) if self._order else []
        return [span for span in spans if span.prefix_length]

    def groups(self, span: _PrefixSpan) -> list[PrefixGroup]:
        """Return groups of at most MAX_MICRO_BATCHES; other work waits for a whole group."""
        batches = [tuple(self._order[first:end]) for first, end in pairwise(span.edges)]
        return [
            PrefixGroup(tuple(batches[at : at + MAX_MICRO_BATCHES]), span.prefix_length)
            for at in range(0, len(batches), MAX_MICRO_BATCHES)
        ]

    def split_evenly(self, span: _PrefixSpan, lanes: int) -> list[_PrefixSpan]:
        """Split a span into one part for each lane, with nearly equal token counts."""
        first, end = span.edges[0], span.edges[-1]
        new_tokens = []
        for at in range(first, end):
            shared = self._shared[at] if at > first else span.prefix_length
            new_tokens.append(self._lengths[at] - shared)
        ends = np.cumsum(new_tokens)
        cuts = first + np.searchsorted(ends, ends[-1] * np.arange(1, lanes) / lanes) + 1
        return [self._span(*part) for part in pairwise(sorted({first, end, *cuts.tolist()}))]

    def _split(self, first: int, end: int) -> list[_PrefixSpan]:
        """Split where neighbours share least, as long as that leaves fewer tokens to compute."""
        whole = self._span(first, end)
        if whole.tokens <= self._budget or end - first == 1:
            return [whole]
        limit = SPLIT_RATIO * whole.prefix_length
        inner = [at for at in range(first + 1, end) if self._shared[at] <= limit]
        edges = pairwise([first, *inner, end])
        parts = list(chain.from_iterable(self._split(*part) for part in edges))
        if whole.prefix_length and sum(part.tokens for part in parts) >= whole.tokens:
            return [whole]
        return parts

    def _span(self, first: int, end: int) -> _PrefixSpan:
        """Split neighbours into as few micro-batches as the budget beside the prefix allows."""
        prefix_length = min(self._shared[first + 1 : end], default=0)
        # tokens of each that the one before does not have
        new_tokens = [self._lengths[at] - self._shared[at] for at in range(first, end)]
        new_tokens[0] = self._lengths[first] - prefix_length
        total = prefix_length + sum(new_tokens)
        if total <= self._budget:
            return _PrefixSpan((first, end), 0, total)
        # a long prefix takes memory in addition to the micro-batch
        budget = self._budget if 2 * prefix_length <= self._budget else self._budget // 2
        edges, size = [first], 0
        for at, count in enumerate(new_tokens, first):
            if size and size + count > budget:
                edges.append(at)
                size = self._lengths[at] - prefix_length
                total += self._shared[at] - prefix_length
            else:
                size += count
        return _PrefixSpan((*edges, end), prefix_length, total)


def assign_to_lanes(order: _PrefixOrder, lanes: int) -> list[PrefixGroup]:
    """Return the groups such that lane i of `lanes` takes items i, i + lanes, i + 2 · lanes, ...

    Spans are assigned to lanes whole. If it lowers the token count of the slowest lane, the
    smallest spans are split across all lanes first. A lane without a group for a turn gets an
    empty one.
    """
    spans = sorted(order.spans(), key=lambda span: -span.tokens)
    candidates = []
    for whole in range(len(spans), max(len(spans) - lanes, -1), -1):
        parts = chain.from_iterable(order.split_evenly(span, lanes) for span in spans[whole:])
        candidates.append(balance([*spans[:whole], *parts], lanes))
    best = min(candidates, key=lambda loads: max(map(_token_count, loads)))
    groups_by_lane = [list(chain.from_iterable(map(order.groups, load))) for load in best]
    turns = zip_longest(*groups_by_lane, fillvalue=PrefixGroup())
    return list(chain.from_iterable(turns))


def balance(spans: Sequence[_PrefixSpan], lanes: int) -> list[list[_PrefixSpan]]:
    """Assign each span in turn to the lane with the fewest tokens."""
    loads = [list[_PrefixSpan]() for _ in range(lanes)]
    for span in spans:
        min(loads, key=_token_count).append(span)
    return loads


def _token_count(spans: Sequence[_PrefixSpan]) -> int:
    return sum(span.tokens for span in spans)

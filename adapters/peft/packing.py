"""Batches cut to a budget of tokens, what several sequences begin with counted once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kitchen.types import Tokens

LEAST = 16  # tokens that a beginning must have to be shared
NEVER = 2**62  # as LEAST: every sequence stands alone
EVEN = (1.0, 1.05, 1.15, 1.3)  # of an even share of the tokens: limits to try, so that no batch is a small rest


def pack(
    sequences: Sequence[Tokens], budget: int, *, group: int = 1, least: int = LEAST, lanes: int = 1
) -> list[tuple[int, ...]]:
    """Indices of the sequences of each micro-batch, those that begin alike next to each other.

    The tokens stay within `budget`, but for a single group that is larger by itself. Runs of `group` adjacent
    sequences stay together and in order. Cut as evenly as can be without more batches than it takes, so that each of
    `lanes` has as many.
    """
    keys = [np.asarray(tokens).astype(">u4").tobytes() for tokens in sequences]
    starts = sorted(range(0, len(sequences), group), key=lambda start: keys[start])
    runs = [tuple(range(start, min(start + group, len(sequences)))) for start in starts]
    if not runs:
        return []
    whole = _filled(sequences, runs, budget, least)
    total = sum(sum(batch.values()) for batch in whole)
    count = -(-len(whole) // lanes) * lanes
    limits = [min(budget, int(share * total / count) + 1) for share in EVEN]
    tries = [_filled(sequences, runs, limit, least) for limit in limits] + [whole]
    fitting = [batches for batches in tries if len(batches) <= count]
    return [tuple(batch) for batch in fitting[0]]


def shared(before: Tokens, after: Tokens, least: int = LEAST) -> int:
    """How many tokens two sequences begin with alike; 0 if less than `least`."""
    most = min(len(before), len(after))
    differ = np.flatnonzero(before[:most] != after[:most])
    alike = int(differ[0]) if len(differ) else most
    return alike if alike >= least else 0


def _filled(
    sequences: Sequence[Tokens], runs: Sequence[tuple[int, ...]], limit: int, least: int
) -> list[dict[int, int]]:
    """Batches of runs: each sequence with the tokens that it adds."""
    batches: list[dict[int, int]] = []
    for run in runs:
        if batches:
            last = next(reversed(batches[-1]))
            added = _added(sequences, run, sequences[last], least)
            if sum(batches[-1].values()) + sum(added.values()) <= limit:
                batches[-1] |= added
                continue
        batches.append(_added(sequences, run, None, least))
    return batches


def _added(sequences: Sequence[Tokens], run: tuple[int, ...], before: Tokens | None, least: int) -> dict[int, int]:
    added = {}
    for index in run:
        tokens = sequences[index]
        added[index] = len(tokens) - (0 if before is None else shared(before, tokens, least))
        before = tokens
    return added

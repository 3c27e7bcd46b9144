"""Batches cut to a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence


def pack(lengths: Sequence[int], budget: int, *, group: int = 1) -> list[tuple[int, ...]]:
    """Indices of the sequences of each micro-batch, the longest first, so that memory peaks at once if it must.

    Rows times longest row stays within `budget` tokens, but for a single group that is larger by itself. Runs of
    `group` adjacent sequences stay together and in order.
    """
    runs = [tuple(range(start, min(start + group, len(lengths)))) for start in range(0, len(lengths), group)]
    longest = {run: max(lengths[index] for index in run) for run in runs}
    packed: list[tuple[int, ...]] = []
    width = 0  # tokens of the longest row of the micro-batch being filled
    for run in sorted(runs, key=lambda run: -longest[run]):
        if packed and (len(packed[-1]) + len(run)) * width <= budget:
            packed[-1] += run
        else:
            packed.append(run)
            width = longest[run]
    return packed

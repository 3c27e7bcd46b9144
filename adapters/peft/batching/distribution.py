"""Distribution of sequences over devices, by token count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from adapters.peft.batching.packing import shared_prefix_length, sort_key
from kitchen.types import Tokens

MIN_TOGETHER = 64  # tokens of a common prefix for which sequences go to one device


@dataclass
class _Cluster:
    """Sequences that go to one device."""

    members: list[int]
    tokens: int  # a prefix that is shared with the run before counts once


@dataclass
class _Load:
    members: list[int] = field(default_factory=list)
    tokens: int = 0


def distribute(
    sequences: Sequence[Tokens],
    devices: int,
    *,
    group: int = 1,
    costs: Sequence[int] | None = None,
) -> list[list[int]]:
    """Return the indices of the sequences of each device, in ascending order.

    Runs of `group` sequences stay together, and so do sequences with a long common prefix as long
    as one device would not get more than its share. The largest clusters are assigned first, each
    to the device with the fewest tokens. `costs`: further tokens of each sequence.
    """
    indices = list(range(len(sequences)))
    runs = [indices[at : at + group] for at in range(0, len(indices), group)]
    sizes = [len(tokens) for tokens in sequences]
    if costs is not None:
        sizes = [size + cost for size, cost in zip(sizes, costs, strict=True)]
    loads = [_Load() for _ in range(devices)]
    clusters = _clusters(sequences, runs, sizes, sum(sizes) / devices)
    for cluster in sorted(clusters, key=lambda cluster: -cluster.tokens):
        load = min(loads, key=lambda load: load.tokens)
        load.members += cluster.members
        load.tokens += cluster.tokens
    return [sorted(load.members) for load in loads]


def _clusters(
    sequences: Sequence[Tokens], runs: Sequence[list[int]], sizes: Sequence[int], share: float
) -> list[_Cluster]:
    """Join runs that are adjacent in the order of prefixes, up to the share of a device."""
    clusters = list[_Cluster]()
    before: Tokens | None = None
    for run in sorted(runs, key=lambda run: sort_key(sequences[run[0]])):
        first, size = sequences[run[0]], sum(sizes[at] for at in run)
        shared = 0 if before is None else shared_prefix_length(before, first, MIN_TOGETHER)
        if shared and clusters[-1].tokens + size - shared <= share:
            clusters[-1].members += run
            clusters[-1].tokens += size - shared
        else:
            clusters.append(_Cluster(list(run), size))
        before = first
    return clusters

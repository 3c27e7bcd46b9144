"""Spans of queries and keys for variable-length attention over a packed layout.

The new tokens of a sequence have adjacent slots, and attend to each other causally. The tokens that
it shares with earlier sequences are its context. Their keys may lie anywhere, so that those of all
contexts are gathered one after the other. Neighbours with the same context share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from kitchen.types import Array


@dataclass(frozen=True, eq=False)
class Spans:
    """B intervals of queries, and of the keys that they attend to, one after the other."""

    query_starts: torch.Tensor  # (B + 1,) int32, as `cu_seqlens_q`
    key_starts: torch.Tensor  # (B + 1,) int32, as `cu_seqlens_k`
    max_queries: int
    max_keys: int


@dataclass(frozen=True, eq=False)
class AttentionSpans:
    """Spans that cover all N queries: their own sequences' new tokens, and their contexts."""

    own: Spans  # causal
    context: Spans | None  # not causal; empty key spans for queries without a context
    context_slots: torch.Tensor  # (C,) slots of the gathered keys of the contexts
    distinct_slots: bool  # whether no slot is in several contexts
    has_context: torch.Tensor  # (N,) bool


def build_spans(
    slots: Sequence[Array], shared_lengths: Sequence[int], device: torch.device
) -> AttentionSpans:
    """Return the spans of sequences that share their first tokens with earlier sequences."""
    own: list[int] = []  # new tokens of each sequence that has any
    queries: list[int] = []  # of each context, and of each run of sequences without one
    contexts: list[Array] = []  # their slots
    for row, shared in zip(slots, shared_lengths, strict=True):
        count = len(row) - shared
        if not count:
            continue
        own.append(count)
        if contexts and np.array_equal(contexts[-1], row[:shared]):
            queries[-1] += count
        else:
            queries.append(count)
            contexts.append(row[:shared])
    lengths = [len(context) for context in contexts]
    has_context = np.repeat(np.array(lengths, bool), queries)
    context_slots = np.concatenate(contexts)
    return AttentionSpans(
        _spans(own, own, device),
        _spans(queries, lengths, device) if any(lengths) else None,
        torch.from_numpy(context_slots).to(device),
        len(np.unique(context_slots)) == len(context_slots),
        torch.from_numpy(has_context).to(device),
    )


def _spans(queries: Sequence[int], keys: Sequence[int], device: torch.device) -> Spans:
    starts = [list(accumulate(lengths, initial=0)) for lengths in (queries, keys)]
    query_starts, key_starts = torch.tensor(starts, dtype=torch.int32).to(device)
    return Spans(query_starts, key_starts, max(queries), max(keys))

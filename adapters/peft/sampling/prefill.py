"""Prefill: prompts are computed together, each from the end of its cached prefix on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from adapters.peft.batching.packed_layout import build_layout
from adapters.peft.batching.packing import pack, pack_padded, shared_prefix_length
from adapters.peft.sampling.conversation_cache import KV
from adapters.peft.sampling.kv_cache import KVGrid, prompt_key, row_index
from kitchen.types import Array, Tokens


@dataclass(frozen=True, eq=False)
class PromptSlot:
    """A prompt and its place in a KV grid."""

    prompt: Tokens
    grid: KVGrid
    number: int
    cached: KV | None  # keys and values of its first tokens


def prefill_batches(slots: Sequence[PromptSlot], budget: int) -> Iterator[list[PromptSlot]]:
    """Split prompts into batches of at most `budget` tokens to read.

    If the prompts share more tokens with each other than are cached, the cache is not used.
    """
    uncached = [slot for slot in slots if slot.cached is None]
    cached_tokens = sum(slot.cached.shape[1] for slot in slots if slot.cached is not None)
    if cached_tokens and _shared_tokens(slots) > cached_tokens + _shared_tokens(uncached):
        slots = [replace(slot, cached=None) for slot in slots]
    uncached = [slot for slot in slots if slot.cached is None]
    for batch in pack([slot.prompt for slot in uncached], budget):
        yield [uncached[at] for at in batch]
    continued = [
        (slot, len(slot.prompt) - slot.cached.shape[1]) for slot in slots if slot.cached is not None
    ]
    for batch in pack_padded([left for _, left in continued], budget):
        yield [continued[at][0] for at in batch]


def _shared_tokens(slots: Sequence[PromptSlot]) -> int:
    """Count the tokens that need not be read because another prompt begins with them too."""
    ordered = sorted((slot.prompt for slot in slots), key=prompt_key)
    return sum(shared_prefix_length(before, after) for before, after in pairwise(ordered))


class Prefill:
    """The packed layout of a prefill batch: N tokens, of which n are new and the rest cached."""

    def __init__(self, slots: Sequence[PromptSlot], device: torch.device) -> None:
        sequences = list[Tokens]()
        cached = dict[int, KV]()
        whole = list[int]()
        for slot in slots:
            if slot.cached is not None:
                cached[len(sequences)] = slot.cached
                sequences.append(slot.prompt[: slot.cached.shape[1]])
            whole.append(len(sequences))
            sequences.append(slot.prompt)
        self.layout = build_layout(sequences, device, cached=cached)
        places, starts = self.layout.slots, self.layout.shared_lengths
        new = np.concatenate([places[at][starts[at] :] for at in whole])
        ends = np.array([places[at][-1] for at in whole])
        self.new = row_index(new, device)  # (n,) positions of the new tokens in the layout
        # (P,) positions of the last token of each prompt, in the layout and among the new tokens
        self.ends = torch.from_numpy(ends).to(device)
        self.last = torch.from_numpy(np.searchsorted(new, ends)).to(device)
        self.targets = list(_grid_targets(slots, [places[at] for at in whole], device))
        self._cached: torch.Tensor | None = None
        if cached:
            self._cached = torch.cat([kv[:, starts[at] :] for at, kv in cached.items()], 1)
        cached_places = [places[at][starts[at] :] for at in cached]
        self._cached_at = torch.from_numpy(np.concatenate(cached_places or [new])).to(device)

    def with_cached(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Add the cached keys and values of a layer to those of the new tokens.

        (n, heads + 2 · kv_heads, D) to (N, heads + 2 · kv_heads, D).
        """
        if self._cached is None:
            return qkv
        merged = qkv.new_zeros(len(self.layout.ids), *qkv.shape[1:])
        merged[self.new] = qkv
        merged[self._cached_at, -self._cached.shape[2] :] = self._cached[layer]
        return merged


def _grid_targets(
    slots: Sequence[PromptSlot], places: Sequence[Array], device: torch.device
) -> Iterator[tuple[KVGrid, list[int], torch.Tensor]]:
    """Yield each grid with its prompts and the (p, S) positions of their tokens, padded with 0."""
    for grid in dict.fromkeys(slot.grid for slot in slots):
        members = [index for index, slot in enumerate(slots) if slot.grid is grid]
        positions = np.zeros((len(members), max(len(places[index]) for index in members)), np.int64)
        for row, index in enumerate(members):
            positions[row, : len(places[index])] = places[index]
        numbers = [slots[index].number for index in members]
        yield grid, numbers, torch.from_numpy(positions).to(device)

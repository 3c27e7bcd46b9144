"""Prefill: prompts are computed together, each from the end of its cached prefix on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from adapters.peft.batching.packed_layout import build_layout
from adapters.peft.batching.packing import pack, pack_padded, shared_prefix_length
from adapters.peft.model import tiled_attention as attention
from adapters.peft.model.decoder import Decoder
from adapters.peft.runtime.worker import raise_if_closed
from adapters.peft.sampling.conversation_cache import KV
from adapters.peft.sampling.kv_cache import prompt_key, row_index
from kitchen.types import Array, Tokens


class PromptStore(Protocol):
    """A part of a KV cache that holds prompts, by number."""

    def write_prompts(self, layer: int, prompts: Sequence[int], kv: torch.Tensor) -> None:
        """Store the (p, S, 2 · kv_heads, D) keys and values of a layer, padded on the right."""
        ...


Store = TypeVar("Store", bound=PromptStore, covariant=True)


@dataclass(frozen=True, eq=False)
class PromptSlot(Generic[Store]):
    """A prompt and its place in a KV cache."""

    prompt: Tokens
    store: Store
    number: int
    cached: KV | None  # keys and values of its first tokens


class PromptReader:
    """Reads prompts into a KV cache, at most `budget` tokens at a time."""

    def __init__(self, decoder: Decoder, budget: int, device: torch.device) -> None:
        self._decoder = decoder
        self._budget = budget
        self._device = device

    def read(self, slots: Sequence[PromptSlot[Any]]) -> dict[bytes, torch.Tensor]:
        """Store the keys and values of prompts; return the (H,) state after each, by its key."""
        states = dict[bytes, torch.Tensor]()
        for batch in prefill_batches(slots, self._budget):
            keys = [prompt_key(slot.prompt) for slot in batch]
            states |= zip(keys, self._read_batch(batch), strict=True)
        return states

    def _read_batch(self, slots: Sequence[PromptSlot[Any]]) -> torch.Tensor:
        """Read one batch; return (P, H), which is all that the last layer computes."""
        batch = Prefill(slots, self._device)
        x = self._decoder.embed(batch.layout.ids[batch.new])
        rope = self._decoder.rope(x, batch.layout.positions[batch.new])
        for number, layer in enumerate(self._decoder.layers):
            raise_if_closed()
            qkv = batch.with_cached(number, layer.project_qkv(x, rope))
            for store, prompts, positions in batch.targets:
                kv = qkv[:, layer.heads :].index_select(0, positions.flatten())
                store.write_prompts(number, prompts, kv.view(*positions.shape, *kv.shape[1:]))
            attended = attention.forward(*layer.split(qkv), batch.layout, layer.scale)
            attended = attended.view(len(qkv), -1)
            if number == len(self._decoder.layers) - 1:
                x, attended = x[batch.last], attended[batch.ends]
            else:
                attended = attended[batch.new]
            x = layer.finish(x, attended)
        return self._decoder.norm.normalize(x)


def prefill_batches(
    slots: Sequence[PromptSlot[Any]], budget: int
) -> Iterator[list[PromptSlot[Any]]]:
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


def _shared_tokens(slots: Sequence[PromptSlot[Any]]) -> int:
    """Count the tokens that need not be read because another prompt begins with them too."""
    ordered = sorted((slot.prompt for slot in slots), key=prompt_key)
    return sum(shared_prefix_length(before, after) for before, after in pairwise(ordered))


class Prefill:
    """The packed layout of a prefill batch: N tokens, of which n are new and the rest cached."""

    def __init__(self, slots: Sequence[PromptSlot[Any]], device: torch.device) -> None:
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
        self.targets = list(_store_targets(slots, [places[at] for at in whole], device))
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


def _store_targets(
    slots: Sequence[PromptSlot[Any]], places: Sequence[Array], device: torch.device
) -> Iterator[tuple[PromptStore, list[int], torch.Tensor]]:
    """Yield each store with its prompts and the (p, S) positions of their tokens, padded with 0."""
    for store in dict.fromkeys(slot.store for slot in slots):
        members = [index for index, slot in enumerate(slots) if slot.store is store]
        positions = np.zeros((len(members), max(len(places[index]) for index in members)), np.int64)
        for row, index in enumerate(members):
            positions[row, : len(places[index])] = places[index]
        numbers = [slots[index].number for index in members]
        yield store, numbers, torch.from_numpy(positions).to(device)

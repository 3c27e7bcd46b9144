"""Many completions at once, token by token, over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from adapters.peft.base import Network
from adapters.peft.drawing import Row, Spell, draw
from adapters.peft.packing import pack

SPARSE = 0.75  # of rows still being written, below which the finished ones are taken out of the cache


def write(network: Network, rows: Sequence[Row], spell: Spell, high: torch.dtype, budget: int) -> None:
    """Complete every row; the prompts, each read once, take `budget` tokens at a time."""
    prompts = list({row.request.prompt.tobytes(): row.request.prompt for row in rows}.values())
    places = {prompt.tobytes(): place for place, prompt in enumerate(prompts)}
    origin = torch.tensor([places[row.request.prompt.tobytes()] for row in rows], device=network.device)
    with torch.inference_mode():
        states, cache, mask = _read_prompts(network, prompts, max(row.room for row in rows), budget)
        live = list(rows)
        states, mask = states[origin], mask[origin]
        if len(prompts) < len(rows):
            cache.take(origin)
        positions = torch.tensor([len(row.request.prompt) for row in rows], device=network.device)
        while True:
            tokens, logprobs = draw(network.head(states), live, high)
            for row, token, logprob in zip(live, tokens, logprobs, strict=True):
                if not row.reason:
                    row.add(token, logprob, spell)
            staying = [place for place, row in enumerate(live) if not row.reason]
            if not staying:
                return
            ids = torch.tensor(tokens, device=network.device)
            if len(staying) <= SPARSE * len(live):
                kept = torch.tensor(staying, device=network.device)
                live, ids, mask, positions = [live[place] for place in staying], ids[kept], mask[kept], positions[kept]
                cache.take(kept)
            seen = mask[:, : cache.length + 1]
            states = network.hidden(ids[:, None], position_ids=positions[:, None], past_key_values=cache,
                                    attention_mask=None if bool(seen.all()) else seen)[:, 0]
            positions = positions + 1


def _read_prompts(
    network: Network, prompts: Sequence[Any], room: int, budget: int
) -> tuple[torch.Tensor, Slots, torch.Tensor]:
    """(P, H) states after the last token of each prompt; keys and values flush right; (P, T + room) what is filled."""
    lengths = [len(prompt) for prompt in prompts]
    width = max(lengths)
    slots, states = Slots(network.layers, len(prompts), width, room), None
    for indices in pack(lengths, budget):
        longest = max(lengths[index] for index in indices)
        ids = np.zeros((len(indices), longest), np.int64)
        for row, index in enumerate(indices):
            ids[row, : lengths[index]] = prompts[index]
        read = DynamicCache()
        hidden = network.hidden(torch.from_numpy(ids).to(network.device), past_key_values=read)
        if states is None:
            states = hidden.new_empty(len(prompts), hidden.shape[-1])
        for row, index in enumerate(indices):
            states[index] = hidden[row, lengths[index] - 1]
        slots.put(read, indices, [lengths[index] for index in indices])
    mask = torch.arange(width + room, device=network.device) >= width - torch.tensor(lengths, device=network.device)[:, None]
    assert states is not None
    return states, slots, mask


class Slots(Cache):
    """Keys and values of all layers, in buffers made once: growing by concatenation would copy them at each token."""

    def __init__(self, layers: int, rows: int, width: int, room: int) -> None:
        super().__init__(layers=[_Slot(rows, width, room) for _ in range(layers)])

    @property
    def length(self) -> int:
        return int(self.layers[0].get_seq_length())

    def put(self, read: Any, indices: Sequence[int], lengths: Sequence[int]) -> None:
        """What was read of some prompts, padded on the right, into their rows, flush right."""
        for slot, layer in zip(self.layers, read.layers, strict=True):
            slot.put(layer.keys, layer.values, indices, lengths)

    def take(self, rows: torch.Tensor) -> None:
        """Keep these rows, in this order; one may come several times."""
        for slot in self.layers:
            slot.take(rows)


class _Slot(CacheLayerMixin):  # type: ignore[misc]
    is_sliding = False

    def __init__(self, rows: int, width: int, room: int) -> None:
        super().__init__()
        self._rows, self._length, self._room = rows, width, room

    def put(self, keys: torch.Tensor, values: torch.Tensor, indices: Sequence[int], lengths: Sequence[int]) -> None:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            end = self._length
            self.keys[index, :, end - length : end] = keys[row, :, :length]
            self.values[index, :, end - length : end] = values[row, :, :length]

    def take(self, rows: torch.Tensor) -> None:
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty(len(rows), *old.shape[1:])
            new[:, :, : self._length] = old[:, :, : self._length].index_select(0, rows)
            setattr(self, name, new)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        for name, like in (("keys", key_states), ("values", value_states)):
            shape = (self._rows, like.shape[1], self._length + self._room, like.shape[3])
            setattr(self, name, like.new_zeros(shape))  # zeros, for what is masked must still be finite
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
               ) -> tuple[torch.Tensor, torch.Tensor]:
        start, self._length = self._length, self._length + key_states.shape[2]
        self.keys[:, :, start : self._length] = key_states
        self.values[:, :, start : self._length] = value_states
        return self.keys[:, :, : self._length], self.values[:, :, : self._length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length + query_length, 0

    def get_seq_length(self) -> int:
        return self._length

    def get_max_length(self) -> int:
        return -1

"""Decoding with the layers that the engine computes itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from adapters.peft.model.decoder import Decoder
from adapters.peft.runtime.cpu import matmul_dtype
from adapters.peft.runtime.worker import raise_if_closed
from adapters.peft.sampling.conversation_cache import CAPACITY_FACTOR, KV
from adapters.peft.sampling.draw import Drawn, DrawnTokens, Row, draw
from adapters.peft.sampling.frozen_linear import FrozenLinear
from adapters.peft.sampling.kv_cache import (
    HeadLayout,
    KVGrid,
    gather_rows,
    group_prompts,
    prompt_key,
    row_index,
)
from adapters.peft.sampling.prefill import PromptReader, PromptSlot
from kitchen.types import Tokens

# final state (H,) and keys and values of prompts, by `prompt_key`
PrefilledPrompts = dict[bytes, tuple[torch.Tensor, torch.Tensor]]


class FusedBody:
    """A DecoderBody with a KV cache of grids: rows share the keys and values of equal prompts."""

    admit_below = 0.75  # not as soon as one has finished: several prompts are read faster together

    def __init__(
        self,
        decoder: Decoder,
        head: FrozenLinear,
        budget: int,
        cached: dict[bytes, KV | None],
        prefilled: PrefilledPrompts | None = None,
    ) -> None:
        """`budget`: prompt tokens that are prefilled together.

        `cached` holds the KV of prefixes, by prompt, and is emptied as prompts are read;
        `prefilled` holds whole prompts, which need not be read.
        """
        layer = decoder.layers[0]
        self._decoder = decoder
        self._head = head
        self._reader = PromptReader(decoder, budget, head.weight.device)
        self._device = head.weight.device
        self._heads = HeadLayout(layer.heads, layer.kv_heads, layer.head_dim, layer.scale)
        self._cached = cached
        # tokens whose KV the conversation cache still has room for
        self._free_tokens = CAPACITY_FACTOR * budget
        self._grids: list[KVGrid] = []
        self._prefilled = dict(prefilled or {})  # until they are needed
        self._retained = PrefilledPrompts()  # read already, and needed again soon
        # (R,) position of the next token of each row
        self._positions = torch.empty(0, dtype=torch.int64, device=self._device)

    def draw(self, states: torch.Tensor, rows: Sequence[Row], accum_dtype: torch.dtype) -> Drawn:
        # not rounded, as in scoring
        logits = self._head.forward(states.to(matmul_dtype(states)))[0]
        return DrawnTokens(*draw(logits, rows, accum_dtype))

    def prefill(self, prompts: Sequence[Tokens], needed_again: Collection[bytes]) -> torch.Tensor:
        """Add one row for each prompt and return their (r, H) states.

        Prompts whose key is in `needed_again` are retained, so that they are read only once.
        """
        slots = self._open_grids(prompts)
        self._retained |= {key: self._prefilled.pop(key) for key in slots if key in self._prefilled}
        states = {key: state for key, (state, _) in self._retained.items() if key in slots}
        for key in states:
            slot, kv = slots[key], self._retained[key][1]
            for layer, layer_kv in enumerate(kv):
                slot.store.write_prompts(layer, [slot.number], layer_kv[None])
        unread = [slot for key, slot in slots.items() if key not in states]
        states |= self._reader.read(unread)
        new = {
            key: (states[key], slot.store.prompt_kv(slot.number))
            for key, slot in slots.items()
            if key in needed_again
        }
        self._retained = {
            key: prefilled
            for key, prefilled in (self._retained | new).items()
            if key in needed_again
        }
        self._rebuild_index()
        return torch.stack([states[prompt_key(prompt)] for prompt in prompts])

    def prefill_only(self, prompts: Sequence[Tokens]) -> PrefilledPrompts:
        """Read prompts for other bodies, which can then complete them without reading them."""
        with torch.inference_mode():
            self.prefill(prompts, {prompt_key(prompt) for prompt in prompts})
        return self._retained

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed the (R,) newest token of each row and return their (R, H) states."""
        raise_if_closed()
        x = self._decoder.embed(ids)
        rope = self._decoder.rope(x, self._positions)
        self._positions = self._positions + 1
        for grid in self._grids:
            grid.reserve_token()
        for number, layer in enumerate(self._decoder.layers):
            qkv = layer.project_qkv(x, rope)
            parts = [grid.attend(number, qkv) for grid in self._grids]
            stacked = parts[0] if len(parts) == 1 else torch.cat(parts)
            attended = gather_rows(stacked, self._output_index)
            x = layer.finish(x, attended.view(len(x), -1))
        return self._decoder.norm.normalize(x)

    def retain(self, rows: Sequence[int]) -> None:
        """Evict all rows but these, which stay in this order."""
        new_number = np.full(len(self._positions), -1)
        new_number[list(rows)] = np.arange(len(rows))
        index = torch.tensor(rows, dtype=torch.int64, device=self._device)
        self._positions = self._positions[index]
        self._grids = [grid for grid in self._grids if grid.retain(new_number)]
        self._rebuild_index()

    def sequence_kv(self, row: int) -> KV | None:
        """Return keys and values of all tokens of a row.

        None once the conversation cache is full: the rows that finish first have a place in it.
        """
        grid, (prompt, completion) = next(
            (grid, cell) for grid in self._grids if (cell := grid.find_row(row)) is not None
        )
        if (size := grid.length(prompt)) > self._free_tokens:
            return None
        self._free_tokens -= size
        return grid.sequence_kv(prompt, completion)

    def _open_grids(self, prompts: Sequence[Tokens]) -> dict[bytes, PromptSlot[KVGrid]]:
        """Create grids for new rows, numbered after the present ones; return a slot per prompt."""
        count = len(self._positions)
        slots = dict[bytes, PromptSlot[KVGrid]]()
        for numbers in group_prompts(prompts):
            distinct = [prompts[first] for first in numbers[:, 0]]
            rows = np.where(numbers >= 0, numbers + count, -1)
            lengths = [len(prompt) for prompt in distinct]
            layers, like = len(self._decoder.layers), self._head.weight
            grid = KVGrid(self._heads, layers, rows, lengths, like)
            self._grids.append(grid)
            for number, prompt in enumerate(distinct):
                key = prompt_key(prompt)
                slots[key] = PromptSlot(prompt, grid, number, self._cached.pop(key, None))
        new_positions = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        self._positions = torch.cat([self._positions, new_positions])
        return slots

    def _rebuild_index(self) -> None:
        """Compute the places of each row's heads in the concatenated output of the grids."""
        places = np.empty((len(self._positions), self._heads.query_heads), np.int64)
        start = 0
        for grid in self._grids:
            rows, grid_places = grid.output_index
            places[rows] = grid_places + start
            start += grid.rows.size * self._heads.query_heads
        self._output_index = row_index(places, self._device)

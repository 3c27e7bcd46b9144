"""Decoding with the modules of transformers, for models without fused layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from adapters.peft.batching.packing import pack_padded
from adapters.peft.model.network import Network
from adapters.peft.sampling.draw import Drawn, DrawnTokens, Row, draw
from adapters.peft.sampling.kv_cache import prompt_key
from adapters.peft.sampling.padded_cache import PaddedCache
from kitchen.types import Tokens

SHRINK_BELOW = 0.75  # share of the cache's rows in use at or below which finished ones are evicted


class HfBody:
    """A DecoderBody whose rows start together, flush right in one padded cache."""

    # none is admitted: rows that start later would need a separate forward pass for each token
    admit_below = 0.0

    def __init__(self, network: Network, budget: int) -> None:
        """`budget`: prompt tokens that are prefilled together."""
        self._network = network
        self._budget = budget
        # (C,) the batch row of each cache row, -1 if it has finished
        self._rows = np.empty(0, np.int64)

    def draw(self, states: torch.Tensor, rows: Sequence[Row], accum_dtype: torch.dtype) -> Drawn:
        return DrawnTokens(*draw(self._network.head(states), rows, accum_dtype))

    def prefill(self, prompts: Sequence[Tokens], needed_again: Collection[bytes]) -> torch.Tensor:
        """Add one row for each prompt and return their (r, H) states; `needed_again` is unused."""
        keys = [prompt_key(prompt) for prompt in prompts]
        distinct = dict(zip(keys, prompts, strict=True))
        places = {key: place for place, key in enumerate(distinct)}
        states, self._cache, starts = self._prefill_distinct(list(distinct.values()))
        origin = torch.tensor([places[key] for key in keys], device=self._network.device)
        if len(distinct) < len(prompts):
            self._cache.take(origin)
        self._starts = starts[origin]  # (C, 1) the column where each row begins
        self._rows = np.arange(len(prompts))
        return states[origin]

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed the (R,) newest token of each row and return their (R, H) states.

        A finished row, until it is evicted, reads the token of another.
        """
        rows = torch.from_numpy(self._rows).to(ids.device)
        columns = torch.arange(self._cache.capacity, device=ids.device)
        mask = (columns >= self._starts) & (columns <= self._cache.length)
        positions = torch.where(rows[:, None] >= 0, self._cache.length - self._starts, 0)
        states = self._network.hidden_padded(
            ids[rows.clamp(min=0)][:, None],
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._cache,
        )[:, 0]
        return states[torch.from_numpy(np.flatnonzero(self._rows >= 0)).to(ids.device)]

    def retain(self, rows: Sequence[int]) -> None:
        """Evict all rows but these, which are in the order of the batch."""
        new_number = np.full((self._rows >= 0).sum(), -1)
        new_number[list(rows)] = np.arange(len(rows))
        self._rows = np.where(self._rows >= 0, new_number[self._rows], -1)
        active = np.flatnonzero(self._rows >= 0)
        if 0 < len(active) <= SHRINK_BELOW * len(self._rows):
            index = torch.from_numpy(active).to(self._starts.device)
            self._cache.take(index)
            self._rows = self._rows[active]
            self._starts = self._starts[index]

    def sequence_kv(self, _: int) -> None:
        """Return None: every turn of a conversation is read whole."""

    def _prefill_distinct(
        self, prompts: Sequence[Tokens]
    ) -> tuple[torch.Tensor, PaddedCache, torch.Tensor]:
        """Prefill different prompts.

        Returns their (P, H) states, the cache with keys and values flush right, and the (P, 1)
        column where each prompt begins.
        """
        lengths = [len(prompt) for prompt in prompts]
        cache = PaddedCache(self._network.layer_count, len(prompts), max(lengths))
        states = []
        order = list[int]()
        for indices in pack_padded(lengths, self._budget):
            states.append(
                self._prefill_padded([prompts[index] for index in indices], indices, cache)
            )
            order += indices
        back = torch.tensor(np.argsort(order), device=self._network.device)
        starts = max(lengths) - torch.tensor(lengths, device=self._network.device)
        return torch.cat(states)[back], cache, starts[:, None]

    def _prefill_padded(
        self, prompts: Sequence[Tokens], indices: Sequence[int], cache: PaddedCache
    ) -> torch.Tensor:
        """Prefill prompts padded on the right, so that no mask is needed; return (P, H) states."""
        lengths = [len(prompt) for prompt in prompts]
        ids = np.zeros((len(prompts), max(lengths)), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        prefilled: Any = DynamicCache()
        hidden = self._network.hidden_padded(
            torch.from_numpy(ids).to(self._network.device), past_key_values=prefilled
        )
        cache.put(prefilled, indices, lengths)
        return hidden[torch.arange(len(prompts)), torch.tensor(lengths) - 1]

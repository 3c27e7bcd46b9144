"""Decoding with the modules of transformers, for models whose layers are not computed by hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from adapters.peft.batching.packing import padded
from adapters.peft.model.network import Network
from adapters.peft.sampling.kv_cache import Slots
from adapters.peft.sampling.kv_grid import key
from kitchen.types import Tokens

SPARSE = 0.75  # of a cache's rows in use, below which the others are taken out


class Modules:
    """The rows of a batch, which have begun together, flush right in one cache; each writes a token
    at a time.
    """

    # none joins: rows that begin later would be a forward pass of their own at each token
    joined = 0.0

    def __init__(self, network: Network, budget: int) -> None:
        """`budget`: tokens of prompts that are read together."""
        self._network, self._budget = network, budget
        # (C,) which row of the batch each of the cache is, -1 if it has ended
        self._rows = np.empty(0, np.int64)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._network.head(states)
        return found

    def read(self, prompts: Sequence[Tokens], later: Collection[bytes]) -> torch.Tensor:
        """A row for each of the prompts; returns their (r, H) states. What comes `later` is read
        again then.
        """
        keys = [key(prompt) for prompt in prompts]
        distinct = dict(zip(keys, prompts, strict=True))
        places = {which: place for place, which in enumerate(distinct)}
        states, self._slots, starts = self._read(list(distinct.values()))
        origin = torch.tensor([places[which] for which in keys], device=self._network.device)
        if len(distinct) < len(prompts):
            self._slots.take(origin)
        # (C, 1) the column where each begins
        self._starts, self._rows = starts[origin], np.arange(len(prompts))
        return states[origin]

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """(R,) newest tokens of the rows to their (R, H) states; a row that has ended reads what
        another does.
        """
        rows = torch.from_numpy(self._rows).to(ids.device)
        columns = torch.arange(self._slots.capacity, device=ids.device)
        mask = (columns >= self._starts) & (columns <= self._slots.length)
        positions = torch.where(rows[:, None] >= 0, self._slots.length - self._starts, 0)
        states = self._network.padded(
            ids[rows.clamp(min=0)][:, None],
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._slots,
        )[:, 0]
        return states[torch.from_numpy(np.flatnonzero(self._rows >= 0)).to(ids.device)]

    def keep(self, staying: Sequence[int]) -> None:
        """These rows alone go on, in this order, which is the one they are in."""
        number = np.full((self._rows >= 0).sum(), -1)
        number[list(staying)] = np.arange(len(staying))
        self._rows = np.where(self._rows >= 0, number[self._rows], -1)
        alive = np.flatnonzero(self._rows >= 0)
        if 0 < len(alive) <= SPARSE * len(self._rows):
            kept = torch.from_numpy(alive).to(self._starts.device)
            self._slots.take(kept)
            self._rows, self._starts = self._rows[alive], self._starts[kept]

    def keys(self, _: int) -> None:
        """Every turn of a conversation is read as a whole."""

    def _read(self, prompts: Sequence[Tokens]) -> tuple[torch.Tensor, Slots, torch.Tensor]:
        """(P, H) states after the prompts; keys and values, flush right; (P, 1) the column where
        each begins.
        """
        lengths = [len(prompt) for prompt in prompts]
        slots, states, order = (
            Slots(self._network.layers, len(prompts), max(lengths)),
            [],
            list[int](),
        )
        for indices in padded(lengths, self._budget):
            states.append(self._read_some([prompts[index] for index in indices], indices, slots))
            order += indices
        back = torch.tensor(np.argsort(order), device=self._network.device)
        starts = max(lengths) - torch.tensor(lengths, device=self._network.device)
        return torch.cat(states)[back], slots, starts[:, None]

    def _read_some(
        self, prompts: Sequence[Tokens], indices: Sequence[int], slots: Slots
    ) -> torch.Tensor:
        """Padded on the right, so that no mask is needed. Returns (P, H)."""
        lengths = [len(prompt) for prompt in prompts]
        ids = np.zeros((len(prompts), max(lengths)), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        read: Any = DynamicCache()
        hidden = self._network.padded(
            torch.from_numpy(ids).to(self._network.device), past_key_values=read
        )
        slots.put(read, indices, lengths)
        return hidden[torch.arange(len(prompts)), torch.tensor(lengths) - 1]

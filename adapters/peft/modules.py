"""Decoding with the modules of transformers, for models whose layers are not computed by hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from adapters.peft.cache import Slots
from adapters.peft.network import Network
from adapters.peft.packing import pack
from kitchen.types import Array, Tokens

SPARSE = 0.75  # of a cache's rows in use, below which the others are taken out


@dataclass(eq=False)
class Cohort:
    """Rows that have begun together, flush right in a cache of their own."""

    slots: Slots
    starts: torch.Tensor  # (C, 1) the column where each begins
    rows: Array  # (C,) which row of the batch each is, -1 if it has ended


class Modules:
    """The rows of a batch, each of which has read a prompt and writes after it, all of them a token at a time."""

    def __init__(self, network: Network, budget: int) -> None:
        """`budget`: tokens of prompts that are read together."""
        self._network, self._budget = network, budget
        self._cohorts: list[Cohort] = []
        self._count = 0  # rows

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._network.head(states)
        return found

    def read(self, prompts: Sequence[Tokens], later: Collection[bytes]) -> torch.Tensor:
        """A row more for each of the prompts; returns their (r, H) states. What comes `later` is read again then."""
        keys = [prompt.tobytes() for prompt in prompts]
        distinct = dict(zip(keys, prompts, strict=True))
        places = {key: place for place, key in enumerate(distinct)}
        states, slots, starts = self._read(list(distinct.values()))
        origin = torch.tensor([places[key] for key in keys], device=self._network.device)
        if len(distinct) < len(prompts):
            slots.take(origin)
        self._cohorts.append(Cohort(slots, starts[origin], np.arange(len(prompts)) + self._count))
        self._count += len(prompts)
        return states[origin]

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """(R,) newest tokens of the rows to their (R, H) states."""
        rows = np.concatenate([cohort.rows for cohort in self._cohorts])
        states = torch.cat([self._step(cohort, ids) for cohort in self._cohorts])
        back = np.flatnonzero(rows >= 0)[np.argsort(rows[rows >= 0])]
        return states[torch.from_numpy(back).to(states.device)]

    def keep(self, staying: Sequence[int]) -> None:
        """These rows alone go on, in this order."""
        number = np.full(self._count, -1)
        number[list(staying)] = np.arange(len(staying))
        self._count = len(staying)
        for cohort in self._cohorts:
            cohort.rows = np.where(cohort.rows >= 0, number[cohort.rows], -1)
            alive = np.flatnonzero(cohort.rows >= 0)
            if 0 < len(alive) <= SPARSE * len(cohort.rows):
                kept = torch.from_numpy(alive).to(cohort.starts.device)
                cohort.slots.take(kept)
                cohort.rows, cohort.starts = cohort.rows[alive], cohort.starts[kept]
        self._cohorts = [cohort for cohort in self._cohorts if (cohort.rows >= 0).any()]

    def _step(self, cohort: Cohort, ids: torch.Tensor) -> torch.Tensor:
        """(C, H); a row that has ended reads what another does."""
        slots, rows = cohort.slots, torch.from_numpy(np.maximum(cohort.rows, 0)).to(ids.device)
        columns = torch.arange(slots.capacity, device=ids.device)
        mask = (columns >= cohort.starts) & (columns <= slots.length)
        return self._network.padded(ids[rows][:, None], position_ids=slots.length - cohort.starts,
                                    past_key_values=slots, attention_mask=mask)[:, 0]

    def _read(self, prompts: Sequence[Tokens]) -> tuple[torch.Tensor, Slots, torch.Tensor]:
        """(P, H) states after the prompts; keys and values, flush right; (P, 1) the column where each begins."""
        lengths = [len(prompt) for prompt in prompts]
        slots, states, order = Slots(self._network.layers, len(prompts), max(lengths)), [], list[int]()
        for indices in pack(prompts, self._budget):
            states.append(self._read_some([prompts[index] for index in indices], indices, slots))
            order += indices
        back = torch.tensor(np.argsort(order), device=self._network.device)
        starts = max(lengths) - torch.tensor(lengths, device=self._network.device)
        return torch.cat(states)[back], slots, starts[:, None]

    def _read_some(self, prompts: Sequence[Tokens], indices: Sequence[int], slots: Slots) -> torch.Tensor:
        """Padded on the right, so that no mask is needed. Returns (P, H)."""
        lengths = [len(prompt) for prompt in prompts]
        ids = np.zeros((len(prompts), max(lengths)), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        read: Any = DynamicCache()
        hidden = self._network.padded(torch.from_numpy(ids).to(self._network.device), past_key_values=read)
        slots.put(read, indices, lengths)
        return hidden[torch.arange(len(prompts)), torch.tensor(lengths) - 1]

"""Many completions at once, token by token, over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from adapters.peft.cache import Slots
from adapters.peft.drawing import Row, Spell, draw
from adapters.peft.network import Network
from adapters.peft.packing import pack
from kitchen.types import Tokens

SPARSE = 0.75  # of rows still being written, below which the finished ones are taken out of the cache


def complete(network: Network, rows: Sequence[Row], spell: Spell, high: torch.dtype, budget: int) -> None:
    """Write every row to its end; the prompts, each read once, take `budget` tokens at a time."""
    with torch.inference_mode():
        live = list(rows)
        states, cache, starts = _read(network, live, budget)
        while staying := _write(live, network.head(states), spell, high):
            ids = torch.tensor([row.ids[-1] for row in live], device=network.device)
            if len(staying) <= SPARSE * len(live):
                kept = torch.tensor(staying, device=network.device)
                live, ids, starts = [live[place] for place in staying], ids[kept], starts[kept]
                cache.take(kept)
            columns = torch.arange(cache.capacity, device=network.device)
            mask = (columns >= starts) & (columns <= cache.length)
            states = network.padded(ids[:, None], position_ids=cache.length - starts, past_key_values=cache,
                                    attention_mask=mask)[:, 0]


def _write(live: Sequence[Row], logits: torch.Tensor, spell: Spell, high: torch.dtype) -> list[int]:
    """One token more for each row that has not ended; returns the places of those that go on."""
    for row, token, logprob in zip(live, *draw(logits, live, high), strict=True):
        if not row.reason:
            row.add(token, logprob, spell)
    return [place for place, row in enumerate(live) if not row.reason]


def _read(network: Network, rows: Sequence[Row], budget: int) -> tuple[torch.Tensor, Slots, torch.Tensor]:
    """(R, H) states after the prompts; keys and values, flush right; (R, 1) the column where each row begins."""
    keys = [row.request.prompt.tobytes() for row in rows]
    distinct = {key: row.request.prompt for key, row in zip(keys, rows, strict=True)}
    places = {key: place for place, key in enumerate(distinct)}
    prompts = list(distinct.values())
    lengths = [len(prompt) for prompt in prompts]
    slots, states = Slots(network.layers, len(prompts), max(lengths)), []
    order: list[int] = []
    for indices in pack(prompts, budget):
        states.append(_read_some(network, [prompts[index] for index in indices], indices, slots))
        order += indices
    back = torch.tensor(np.argsort(order), device=network.device)
    origin = torch.tensor([places[key] for key in keys], device=network.device)
    if len(prompts) < len(rows):
        slots.take(origin)
    starts = max(lengths) - torch.tensor(lengths, device=network.device)
    return torch.cat(states)[back][origin], slots, starts[origin][:, None]


def _read_some(network: Network, prompts: Sequence[Tokens], indices: Sequence[int], slots: Slots) -> torch.Tensor:
    """Padded on the right, so that no mask is needed. Returns (P, H)."""
    lengths = [len(prompt) for prompt in prompts]
    ids = np.zeros((len(prompts), max(lengths)), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
    read: Any = DynamicCache()
    hidden = network.padded(torch.from_numpy(ids).to(network.device), past_key_values=read)
    slots.put(read, indices, lengths)
    return hidden[torch.arange(len(prompts)), torch.tensor(lengths) - 1]

"""Decoding one row after the other, for models whose rows cannot share a batch."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from adapters.peft.model.network import Network
from adapters.peft.sampling.draw import Drawn, DrawnTokens, Row, draw
from adapters.peft.sampling.kv_cache import prompt_key
from kitchen.types import Tokens


class OneRowBody:
    """A DecoderBody whose rows each have the DynamicCache of transformers for their model."""

    admit_below = 0.75  # rows share nothing, so that others may be admitted at any time

    def __init__(self, network: Network) -> None:
        self._network = network
        self._caches = list[Any]()

    def draw(self, states: torch.Tensor, rows: Sequence[Row], accum_dtype: torch.dtype) -> Drawn:
        return DrawnTokens(*draw(self._network.head(states), rows, accum_dtype))

    def prefill(self, prompts: Sequence[Tokens], needed_again: Collection[bytes]) -> torch.Tensor:
        """Add one row for each prompt and return their (r, H) states; `needed_again` is unused."""
        prefilled: dict[bytes, tuple[Any, torch.Tensor]] = {}
        states = []
        for prompt in prompts:
            if (key := prompt_key(prompt)) not in prefilled:
                cache = DynamicCache(config=self._network.model.config.get_text_config())
                ids = torch.as_tensor(prompt, dtype=torch.int64)
                prefilled[key] = cache, self._forward(ids, cache)
            cache, state = prefilled[key]
            self._caches.append(copy.deepcopy(cache))
            states.append(state)
        return torch.stack(states)

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed the (R,) newest token of each row and return their (R, H) states."""
        return torch.stack(
            [
                self._forward(token[None], cache)
                for token, cache in zip(ids, self._caches, strict=True)
            ]
        )

    def retain(self, rows: Sequence[int]) -> None:
        """Evict all rows but these, which stay in this order."""
        self._caches = [self._caches[place] for place in rows]

    def sequence_kv(self, _: int) -> None:
        """Return None: every turn of a conversation is read whole."""

    def _forward(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        """Read (T,) tokens after those in the cache; return the (H,) state of the last one."""
        ids = ids[None].to(self._network.device)
        return self._network.hidden_padded(ids, past_key_values=cache)[0, -1]

"""Decoding one row after the other, for models whose rows cannot share a batch."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from adapters.peft.model.network import Network
from adapters.peft.sampling.kv_grid import key
from kitchen.types import Tokens


class Solitary:
    """Each row with a cache such as its model makes for itself."""

    joined = 0.75  # others may join whenever there is room

    def __init__(self, network: Network) -> None:
        self._network, self._caches = network, list[Any]()

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._network.head(states)
        return found

    def read(self, prompts: Sequence[Tokens], later: Collection[bytes]) -> torch.Tensor:
        """A row more for each of the prompts; returns their (r, H) states. What comes `later` is
        read again then.
        """
        read: dict[bytes, tuple[Any, torch.Tensor]] = {}
        states = []
        for prompt in prompts:
            if (which := key(prompt)) not in read:
                cache = DynamicCache(config=self._network.model.config.get_text_config())
                read[which] = cache, self._on(torch.as_tensor(prompt, dtype=torch.int64), cache)
            cache, state = read[which]
            self._caches.append(copy.deepcopy(cache))
            states.append(state)
        return torch.stack(states)

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """(R,) newest tokens of the rows to their (R, H) states."""
        return torch.stack(
            [self._on(token[None], cache) for token, cache in zip(ids, self._caches, strict=True)]
        )

    def keep(self, staying: Sequence[int]) -> None:
        """These rows alone go on, in this order."""
        self._caches = [self._caches[place] for place in staying]

    def keys(self, _: int) -> None:
        """Every turn of a conversation is read as a whole."""

    def _on(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        """(T,) tokens after what the cache has, to the (H,) state after the last of them."""
        return self._network.padded(ids[None].to(self._network.device), past_key_values=cache)[
            0, -1
        ]

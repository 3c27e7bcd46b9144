"""What a sampler has read and written last: conversations go on from there, and are not read anew at each turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from adapters.peft.grid import key
from adapters.peft.packing import LEAST
from kitchen.types import Tokens

MOST = 8  # times what is read at once: tokens of a batch whose keys and values are kept

Keys = torch.Tensor  # (layers, T, 2 · groups, D) keys and values of T tokens
Ended = tuple[Tokens, Keys | None]


class Said:
    """The sequences of a sampler's last batch, with the keys of those that went on from the one before it.

    So what is asked once takes no memory: the second turn of a conversation is read as a whole, of the third what is
    new. Which are kept follows from the requests and their order alone.
    """

    def __init__(self) -> None:
        self._last: Mapping[bytes, Keys | None] = {}

    def take(self, prompts: Iterable[Tokens]) -> dict[bytes, Keys | None]:
        """By prompts that go on, what they begin with; what is not taken is forgotten."""
        last, self._last = self._last, {}
        sizes = sorted({len(tokens) for tokens in last}, reverse=True)
        found = dict[bytes, Keys | None]()
        for prompt in map(key, prompts):
            size = next((size for size in sizes if size < len(prompt) and prompt[:size] in last), 0)
            if size:
                found[prompt] = last[prompt[:size]]
        return found

    def put(self, ended: Iterable[Ended]) -> None:
        """Sequences that have ended; any that is too short to be shared is read again instead."""
        self._last = {key(tokens): keys for tokens, keys in ended if len(tokens) >= LEAST}

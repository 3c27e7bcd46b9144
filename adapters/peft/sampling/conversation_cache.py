"""What a sampler has read and written last: conversations go on from there, and are not read anew
at each turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from adapters.peft.batching.packing import LEAST, shared
from adapters.peft.sampling.kv_grid import key
from kitchen.types import Tokens

MOST = 8  # times what is read at once: tokens of a batch whose keys and values are kept

Keys = torch.Tensor  # (layers, T, 2 · groups, D) keys and values of T tokens
ITEM = np.dtype(np.int64).itemsize  # of a token, in `key`


class Said:
    """The sequences of a sampler's last batch, with the keys of those that went on from the one
    before it.

    So what is asked once takes no memory: the second turn of a conversation is read as a whole, of
    the third what is new. Which are kept follows from the requests and their order alone.
    """

    def __init__(self) -> None:
        self._last: dict[bytes, Keys | None] = {}

    def take(self, prompts: Iterable[Tokens]) -> dict[bytes, Keys | None]:
        """By the keys of prompts that go on, what they begin with; what is not taken is forgotten."""
        last, self._last = self._last, {}
        ordered = sorted(last)
        begins = {key(prompt): _longest(ordered, key(prompt[:-1])) for prompt in prompts}
        return {whole: last[begun] for whole, begun in begins.items() if begun is not None}

    def put(self, ended: Iterable[Mapping[bytes, Keys | None]]) -> None:
        """Sequences that have ended, lane by lane."""
        self._last = {}
        for some in ended:
            self._last |= {
                whole: keys for whole, keys in some.items() if self._last.get(whole) is None
            }


def _longest(ordered: Sequence[bytes], whole: bytes) -> bytes | None:
    """Of some sequences in their order, by `key`, the longest that another begins with, of `LEAST`
    tokens or more.
    """
    while at := bisect_right(ordered, whole):
        before = ordered[at - 1]
        if whole.startswith(before):
            return before if len(before) >= LEAST * ITEM else None
        alike = shared(np.frombuffer(before, np.int64), np.frombuffer(whole, np.int64))
        # what it begins with comes before it, and begins with no more than this
        whole = whole[: alike * ITEM]
    return None

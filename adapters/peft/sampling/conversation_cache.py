"""The conversation cache: keys and values that a sampler retains between batches.

The next turn of a conversation then reads only its new tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from adapters.peft.batching.packing import MIN_SHARED, shared_prefix_length
from adapters.peft.sampling.kv_cache import prompt_key
from kitchen.types import Tokens

# Capacity of the cache, as a multiple of the tokens that are prefilled together.
CAPACITY_FACTOR = 8

KV = torch.Tensor  # (layers, T, 2 · kv_heads, D) keys and values of T tokens
TOKEN_BYTES = np.dtype(np.int64).itemsize  # of one token in `prompt_key`


class ConversationCache:
    """Keys of the last batch's sequences, and KV of those that extended one of the batch before.

    A prompt that is never continued takes no memory: the second turn of a conversation is prefilled
    whole, and from the third on only its new tokens are. The contents depend on the requests and
    their order alone.

    KV is evicted in these places:

    - `take` and `put`, called by `_sample` in `batch.py`: the cache holds the last batch only.
    - `Scheduler._retain`: of rows that finish, KV is offered only if they continue a conversation.
    - `sequence_kv` of `FusedBody` and `PagedBody`: the first sequences to finish fit, up to
      `CAPACITY_FACTOR` times the token budget. Other decoder bodies offer nothing.
    - `retain` of each decoder body (`FusedBody` calls `KVGrid.retain`; `PagedBody`, `HfBody`,
      `OneRowBody`): the KV cache within a batch, when rows finish.
    - `prefill` of `FusedBody` and `PagedBody`: prompts that were read ahead, when no waiting row
      needs them any more.
    - `PagedDecoder.release`: the pages of a batch, once it has ended.
    """

    def __init__(self) -> None:
        self._last: dict[bytes, KV | None] = {}

    def take(self, prompts: Iterable[Tokens]) -> dict[bytes, KV | None]:
        """Return the cached KV of each prompt that continues a sequence, and clear the cache."""
        last, self._last = self._last, {}
        ordered = sorted(last)
        prefixes = {
            prompt_key(prompt): _longest_prefix(ordered, prompt_key(prompt[:-1]))
            for prompt in prompts
        }
        return {key: last[prefix] for key, prefix in prefixes.items() if prefix is not None}

    def put(self, finished: Iterable[Mapping[bytes, KV | None]]) -> None:
        """Store the finished sequences of each lane."""
        self._last = {}
        for sequences in finished:
            self._last |= {key: kv for key, kv in sequences.items() if self._last.get(key) is None}


def _longest_prefix(ordered: Sequence[bytes], sequence: bytes) -> bytes | None:
    """Return the longest of some sorted sequences that is a prefix of another one.

    Sequences are `prompt_key`s; a prefix has at least `MIN_SHARED` tokens.
    """
    while end := bisect_right(ordered, sequence):
        before = ordered[end - 1]
        if sequence.startswith(before):
            return before if len(before) >= MIN_SHARED * TOKEN_BYTES else None
        common = shared_prefix_length(
            np.frombuffer(before, np.int64), np.frombuffer(sequence, np.int64)
        )
        # any prefix sorts before it, and is no longer than this
        sequence = sequence[: common * TOKEN_BYTES]
    return None

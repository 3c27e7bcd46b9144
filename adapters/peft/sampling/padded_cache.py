"""A padded KV cache for models that transformers computes; the fused body uses `kv_cache.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

# Columns that a buffer grows by: growing at each token would copy it, and the products would copy
# a slice of it.
BLOCK = 32


class PaddedCache(Cache):
    """Keys and values of all layers, in buffers with a few spare columns that are masked out."""

    def __init__(self, layers: int, rows: int, width: int) -> None:
        self._layers = [_LayerCache(rows, width) for _ in range(layers)]
        super().__init__(layers=list(self._layers))

    @property
    def length(self) -> int:
        """Columns filled."""
        return self._layers[0].get_seq_length()

    @property
    def capacity(self) -> int:
        """Columns of the buffer after the next token."""
        return self._layers[0].get_mask_sizes(1)[0]

    def put(self, prefilled: Any, indices: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy a right-padded cache of some prompts into their rows, flush right."""
        for cache, layer in zip(self._layers, prefilled.layers, strict=True):
            cache.put(layer.keys, layer.values, indices, lengths)

    def take(self, rows: torch.Tensor) -> None:
        """Evict all rows but these, which stay in this order; a row may occur several times."""
        for cache in self._layers:
            cache.keys = cache.keys.index_select(0, rows)
            cache.values = cache.values.index_select(0, rows)


class _LayerCache(CacheLayerMixin):  # type: ignore[no-untyped-call]
    is_sliding = False
    keys: torch.Tensor  # (R, heads, columns, D)
    values: torch.Tensor

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows, self._length, self._columns = rows, width, _whole_blocks(width + 1)

    def put(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        indices: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            columns = slice(self._length - length, self._length)
            self.keys[index, :, columns] = keys[row, :, :length]
            self.values[index, :, columns] = values[row, :, :length]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (
            # zeros, because what is masked must be finite
            like.new_zeros(self._rows, like.shape[1], self._columns, like.shape[3])
            for like in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, self._length = self._length, self._length + key_states.shape[2]
        missing = _whole_blocks(self._length) - self._columns
        if missing > 0:
            self._columns += missing
            self.keys, self.values = (
                torch.cat([old, old.new_zeros(*old.shape[:2], missing, old.shape[3])], 2)
                for old in (self.keys, self.values)
            )
        self.keys[:, :, start : self._length] = key_states
        self.values[:, :, start : self._length] = value_states
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return max(self._columns, _whole_blocks(self._length + query_length)), 0

    def get_seq_length(self) -> int:
        return self._length

    def get_max_length(self) -> int:
        return -1


def _whole_blocks(columns: int) -> int:
    """Round up to a multiple of BLOCK."""
    return -(-columns // BLOCK) * BLOCK

"""Keys and values of what has been read and written so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class Slots(Cache):
    """Keys and values of all layers, in buffers made once: growing by concatenation would copy them at each token."""

    def __init__(self, layers: int, rows: int, width: int, room: int, dtype: torch.dtype | None) -> None:
        self._slots = [_Slot(rows, width, room, dtype) for _ in range(layers)]
        super().__init__(layers=list(self._slots))

    @property
    def length(self) -> int:
        return self._slots[0].get_seq_length()

    def put(self, read: Any, indices: Sequence[int], lengths: Sequence[int]) -> None:
        """What was read of some prompts, padded on the right, into their rows, flush right."""
        for slot, layer in zip(self._slots, read.layers, strict=True):
            slot.put(layer.keys, layer.values, indices, lengths)

    def take(self, rows: torch.Tensor) -> None:
        """Keep these rows, in this order; one may come several times."""
        for slot in self._slots:
            slot.take(rows)


class _Slot(CacheLayerMixin):  # type: ignore[no-untyped-call]
    is_sliding = False
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, rows: int, width: int, room: int, dtype: torch.dtype | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows, self._length, self._room, self._dtype = rows, width, room, dtype

    def put(self, keys: torch.Tensor, values: torch.Tensor, indices: Sequence[int], lengths: Sequence[int]) -> None:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            end = self._length
            self.keys[index, :, end - length : end] = keys[row, :, :length]
            self.values[index, :, end - length : end] = values[row, :, :length]

    def take(self, rows: torch.Tensor) -> None:
        self.keys, self.values = self._taken(self.keys, rows), self._taken(self.values, rows)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = self._empty(key_states), self._empty(value_states)
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
               ) -> tuple[torch.Tensor, torch.Tensor]:
        start, self._length = self._length, self._length + key_states.shape[2]
        self.keys[:, :, start : self._length] = key_states
        self.values[:, :, start : self._length] = value_states
        return self.keys[:, :, : self._length], self.values[:, :, : self._length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length + query_length, 0

    def get_seq_length(self) -> int:
        return self._length

    def get_max_length(self) -> int:
        return -1

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        """Zeros, for what is masked must still be finite."""
        shape = (self._rows, like.shape[1], self._length + self._room, like.shape[3])
        return like.new_zeros(shape, dtype=self._dtype or like.dtype)

    def _taken(self, old: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        new = old.new_empty(len(rows), *old.shape[1:])
        new[:, :, : self._length] = old[:, :, : self._length].index_select(0, rows)
        return new

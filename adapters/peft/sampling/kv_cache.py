"""Keys and values of what has been read and written so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

# columns that a buffer grows by: at each token it would be copied, and a slice of it is copied by
# products
BLOCK = 32


class Slots(Cache):
    """Keys and values of all layers, in buffers with a few columns to spare, which the mask leaves
    out.
    """

    def __init__(self, layers: int, rows: int, width: int) -> None:
        self._slots = [_Slot(rows, width) for _ in range(layers)]
        super().__init__(layers=list(self._slots))

    @property
    def length(self) -> int:
        """Columns filled."""
        return self._slots[0].get_seq_length()

    @property
    def capacity(self) -> int:
        """Columns there will be when the next token has come."""
        return self._slots[0].get_mask_sizes(1)[0]

    def put(self, read: Any, indices: Sequence[int], lengths: Sequence[int]) -> None:
        """What was read of some prompts, padded on the right, into their rows, flush right."""
        for slot, layer in zip(self._slots, read.layers, strict=True):
            slot.put(layer.keys, layer.values, indices, lengths)

    def take(self, rows: torch.Tensor) -> None:
        """Keep these rows, in this order; one may come several times."""
        for slot in self._slots:
            slot.keys, slot.values = (
                slot.keys.index_select(0, rows),
                slot.values.index_select(0, rows),
            )


class _Slot(CacheLayerMixin):  # type: ignore[no-untyped-call]
    is_sliding = False
    keys: torch.Tensor  # (R, heads, columns, D)
    values: torch.Tensor

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows, self._length, self._columns = rows, width, _blocks(width + 1)

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
            # what is masked must be finite
            like.new_zeros(self._rows, like.shape[1], self._columns, like.shape[3])
            for like in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, self._length = self._length, self._length + key_states.shape[2]
        missing = _blocks(self._length) - self._columns
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
        return max(self._columns, _blocks(self._length + query_length)), 0

    def get_seq_length(self) -> int:
        return self._length

    def get_max_length(self) -> int:
        return -1


def _blocks(columns: int) -> int:
    return -(-columns // BLOCK) * BLOCK

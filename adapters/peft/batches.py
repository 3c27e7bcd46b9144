"""Datums as tensors, and numbers as datums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kitchen.types import Array, Datum


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together, and the positions to be scored, datum after datum."""

    indices: tuple[int, ...]  # of its datums in the batch
    lengths: tuple[int, ...]  # tokens of each
    ids: torch.Tensor  # (R, T), padded on the right with 0
    where: torch.Tensor  # (S,) of the scored positions in the flattened ids
    targets: torch.Tensor  # (S, K), K the most targets of a position; what is padded has slope 0
    owner: Array  # (S,) row of each scored position
    position: Array  # (S,) its place in the datum

    def spread(self, row: int, values: Array, datum: Datum) -> Array:
        """Of the (S, K) values those of one row, in the shape of its targets; 0 where not scored."""
        targets, mine = np.asarray(datum.targets), self.owner == row
        out = np.zeros((len(targets), self.targets.shape[1]), values.dtype)
        out[self.position[mine]] = values[mine]
        return out[:, 0] if targets.ndim == 1 else out[:, : targets.shape[1]]


def micro_batch(
    data: Sequence[Datum], masks: Sequence[Array], indices: tuple[int, ...], device: torch.device
) -> MicroBatch:
    """`masks` says where each datum of the batch is scored, (N,) bool."""
    chosen = [data[index] for index in indices]
    lengths = tuple(len(datum.tokens) for datum in chosen)
    wide = [np.asarray(datum.targets).reshape(length, -1) for datum, length in zip(chosen, lengths, strict=True)]
    ids = np.zeros((len(chosen), max(lengths)), np.int64)
    targets = np.zeros((sum(int(masks[index].sum()) for index in indices), max(t.shape[1] for t in wide)), np.int64)
    owner, position = np.empty(len(targets), np.int64), np.empty(len(targets), np.int64)
    end = 0
    for row, (index, datum) in enumerate(zip(indices, chosen, strict=True)):
        ids[row, : lengths[row]] = datum.tokens
        places = np.flatnonzero(masks[index])
        piece = slice(end, end := end + len(places))
        owner[piece], position[piece] = row, places
        targets[piece, : wide[row].shape[1]] = wide[row][places]
    where = owner * ids.shape[1] + position
    ids_, where_, targets_ = (torch.from_numpy(array).to(device) for array in (ids, where, targets))
    return MicroBatch(indices, lengths, ids_, where_, targets_, owner, position)

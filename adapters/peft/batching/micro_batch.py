"""Datums as tensors, and numbers as datums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from adapters.peft.batching.packed_layout import Layout, lay_out
from adapters.peft.batching.packing import LEAST
from kitchen.types import Array, Datum


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Datums that go through the model together, and the positions to be scored, in the order in
    which they lie.
    """

    indices: tuple[int, ...]  # of its datums in the batch
    layout: Layout
    where: torch.Tensor  # (U,) of the scored tokens in the layout, each once
    targets: torch.Tensor  # (S, K), K the most targets of a position; what is padded has slope 0
    row: torch.Tensor  # (S,) of each scored position, which of `where` it is; ascending
    owner: Array  # (S,) which of `indices` it belongs to
    position: Array  # (S,) its place in the datum

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Datum and length of each."""
        return [
            (index, len(places))
            for index, places in zip(self.indices, self.layout.places, strict=True)
        ]

    def spread(self, row: int, values: Array, datum: Datum) -> Array:
        """Of the (S, K) values those of one datum, in the shape of its targets; 0 where not scored."""
        targets, mine = np.asarray(datum.targets), self.owner == row
        out = np.zeros((len(targets), self.targets.shape[1]), values.dtype)
        out[self.position[mine]] = values[mine]
        return out[:, 0] if targets.ndim == 1 else out[:, : targets.shape[1]]


def micro_batch(
    data: Sequence[Datum],
    masks: Sequence[Array],
    indices: tuple[int, ...],
    device: torch.device,
    least: int = LEAST,
    begins: int = 0,
) -> MicroBatch:
    """`masks` says where each datum of the batch is scored, (N,) bool; of the first `begins`
    tokens, keys are known.
    """
    chosen = [data[index] for index in indices]
    layout = lay_out([np.asarray(datum.tokens) for datum in chosen], device, least, begins=begins)
    wide = [np.asarray(datum.targets).reshape(len(datum.tokens), -1) for datum in chosen]
    scored = [np.flatnonzero(masks[index]) for index in indices]
    targets = np.zeros((sum(map(len, scored)), max(each.shape[1] for each in wide)), np.int64)
    end = 0
    for each, places in zip(wide, scored, strict=True):
        targets[end : (end := end + len(places)), : each.shape[1]] = each[places]
    owner = np.repeat(np.arange(len(chosen)), [len(places) for places in scored])
    position = np.concatenate(scored)
    lies = np.concatenate(
        [mine[places] for mine, places in zip(layout.places, scored, strict=True)]
    )
    order = np.argsort(lies, kind="stable")
    where, row = np.unique(lies[order], return_inverse=True)
    where_, targets_, row_ = (
        torch.from_numpy(array).to(device) for array in (where, targets[order], row)
    )
    return MicroBatch(indices, layout, where_, targets_, row_, owner[order], position[order])

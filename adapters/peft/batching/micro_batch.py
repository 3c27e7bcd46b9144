"""Micro-batches: datums as tensors, and scored values back as arrays of each datum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from adapters.peft.batching.packed_layout import PackedLayout, build_layout, to_device
from adapters.peft.batching.packing import MIN_SHARED
from kitchen.types import Array, Datum


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Datums that go through the model together, and their scored positions in packed order."""

    indices: tuple[int, ...]  # of its datums in the batch
    layout: PackedLayout
    scored_slots: torch.Tensor  # (U,) packed slots of the scored tokens, each once
    targets: (
        torch.Tensor
    )  # (S, K), K the largest number of targets per position; padding has gradient 0
    target_rows: torch.Tensor  # (S,) index into `scored_slots` of each scored position; ascending
    owners: Array  # (S,) index into `indices` of the datum that each scored position belongs to
    positions: Array  # (S,) position of each scored token in its datum

    @property
    def datum_lengths(self) -> list[tuple[int, int]]:
        """The index and the length in tokens of each datum."""
        return [
            (index, len(slots))
            for index, slots in zip(self.indices, self.layout.slots, strict=True)
        ]

    def unpack(self, row: int, values: Array, datum: Datum) -> Array:
        """Return one datum's part of (S, K) values, shaped like its targets; 0 where unscored."""
        targets, owned = np.asarray(datum.targets), self.owners == row
        out = np.zeros((len(targets), self.targets.shape[1]), values.dtype)
        out[self.positions[owned]] = values[owned]
        return out[:, 0] if targets.ndim == 1 else out[:, : targets.shape[1]]


def build_micro_batch(
    data: Sequence[Datum],
    masks: Sequence[Array],
    indices: tuple[int, ...],
    device: torch.device,
    min_shared: int = MIN_SHARED,
    prefix_length: int = 0,
) -> MicroBatch:
    """Build the micro-batch of the datums at `indices`.

    `masks` marks the scored positions of every datum of the batch, (N,) bool. Keys and values of
    the first `prefix_length` tokens are already computed.
    """
    datums = [data[index] for index in indices]
    tokens = [np.asarray(datum.tokens) for datum in datums]
    layout = build_layout(tokens, device, min_shared, prefix_length=prefix_length)
    scored = [np.flatnonzero(masks[index]) for index in indices]
    owners = np.repeat(np.arange(len(datums)), [len(positions) for positions in scored])
    positions = np.concatenate(scored)
    slots = np.concatenate(
        [of_datum[positions] for of_datum, positions in zip(layout.slots, scored, strict=True)]
    )
    order = np.argsort(slots, kind="stable")
    scored_slots, target_rows = np.unique(slots[order], return_inverse=True)
    targets = _padded_targets(datums, scored)[order]
    return MicroBatch(
        indices,
        layout,
        to_device(scored_slots, device),
        to_device(targets, device),
        to_device(target_rows, device),
        owners[order],
        positions[order],
    )


def _padded_targets(datums: Sequence[Datum], scored: Sequence[Array]) -> Array:
    """(S, K) targets of the scored positions, datum after datum, padded with 0."""
    wide = [np.asarray(datum.targets).reshape(len(datum.tokens), -1) for datum in datums]
    count, width = sum(map(len, scored)), max(targets.shape[1] for targets in wide)
    padded = np.zeros((count, width), np.int64)
    end = 0
    for targets, positions in zip(wide, scored, strict=True):
        start, end = end, end + len(positions)
        padded[start:end, : targets.shape[1]] = targets[positions]
    return padded

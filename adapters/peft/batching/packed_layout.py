"""The packed layout of a micro-batch: no padding, a shared prefix once, attention in tiles.

Comparable to packed sequences with `cu_seqlens`, but each sequence has a list of slots instead of
one interval, so that several sequences can share the slots of a common prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch

from adapters.peft.batching.attention_spans import AttentionSpans, build_spans
from adapters.peft.batching.packing import MIN_SHARED, shared_prefix_length
from kitchen.types import Array, Tokens

MIN_TILE = 128  # queries
MAX_CACHED_BIAS_KEYS = 1024  # the mask of a tile with more keys is not cached for all layers

Tile = tuple[int, Array]  # the first query, and the slots of all tokens up to the last query


@dataclass(frozen=True)
class TilingConfig:
    """Limits of attention tiles.

    Only scores above the diagonal within a tile are wasted: small tiles waste less, large tiles
    need fewer operations.
    """

    max_queries: int  # per tile; fewer where there are many keys, but at least MIN_TILE
    max_area: int  # queries times keys, for each head, that are computed at once
    max_padding: float  # padded area of a batch of tiles, as a multiple of its real area


# by type of device: little wasted work on a CPU, few operations on a GPU
TILING = MappingProxyType(
    {
        "cpu": TilingConfig(MIN_TILE, 2**18, 1.3),
        "cuda": TilingConfig(512, 2**22, 4.0),
        "mps": TilingConfig(512, 2**22, 4.0),
    }
)


@dataclass(frozen=True, eq=False)
class TileBatch:
    """B tiles padded to one shape: runs of t queries, each with the S keys up to its last query."""

    query_slots: torch.Tensor  # (B, t), padded with 0
    query_padding: torch.Tensor | None  # (B, t) bool; None if no query is padding
    key_slots: torch.Tensor  # (B, S), padded with 0
    real_queries: torch.Tensor  # (M,) indices into the B·t queries of those that are not padding
    real_query_slots: torch.Tensor  # (M,) the slots of these
    # tile, its first key, the slot of that key, number of keys in adjacent slots
    key_runs: tuple[tuple[int, int, int, int], ...]
    last_key: torch.Tensor  # (B, t) the last key that each query may attend to
    _biases: dict[tuple[int, int, torch.dtype], torch.Tensor] = field(default_factory=dict)

    @cached_property
    def real_keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(M,) indices into the B·S keys of those that are not padding, and (M,) their slots."""
        width = self.key_slots.shape[1]
        indices, slots = [], []
        for tile, first, slot, length in self.key_runs:
            indices.append(np.arange(first, first + length) + tile * width)
            slots.append(np.arange(slot, slot + length))
        device = self.key_slots.device
        return to_device(np.concatenate(indices), device), to_device(np.concatenate(slots), device)

    @property
    def mask(self) -> torch.Tensor:
        """(B, t, S) bool, true where a query may attend to a key."""
        keys = torch.arange(self.key_slots.shape[1], device=self.last_key.device)
        return keys <= self.last_key[:, :, None]

    def bias(self, kv_heads: int, heads_per_kv: int, dtype: torch.dtype) -> torch.Tensor:
        """(B · kv_heads, heads_per_kv · t, S), 0 where a query may attend, else -inf.

        Cached for all layers with these heads. With many keys it is rebuilt for each layer:
        otherwise the biases of all tiles would take memory quadratic in the tokens.
        """
        key = kv_heads, heads_per_kv, dtype
        if key in self._biases:
            return self._biases[key]
        mask = self.mask
        tiles, queries, keys = mask.shape
        bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        bias.masked_fill_(~mask, float("-inf"))
        expanded = bias[:, None, None].expand(tiles, kv_heads, heads_per_kv, queries, keys)
        bias = expanded.reshape(tiles * kv_heads, -1, keys)
        if keys <= MAX_CACHED_BIAS_KEYS:
            self._biases[key] = bias
        return bias


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """N packed tokens, the slots of each sequence among them, and what attends to what.

    Attention is computed either in tiles or in spans; each is built when it is needed.
    """

    ids: torch.Tensor  # (N,)
    positions: torch.Tensor  # (N,) of each token in its sequences
    slots: tuple[Array, ...]  # of each sequence, (T,) the slots of its tokens
    shared_lengths: tuple[int, ...]  # of each sequence, leading tokens with slots of an earlier one
    cached: frozenset[int]  # sequences that attend to nothing in tiles
    tiling: TilingConfig

    @cached_property
    def tiles(self) -> tuple[TileBatch, ...]:
        """The tiles of the attention of all sequences that are not cached."""
        tiles = list(_cut_into_tiles(self.slots, self.shared_lengths, self.cached, self.tiling))
        batches = _batch_tiles(tiles, self.tiling)
        return tuple(_tile_batch(batch, self.ids.device) for batch in batches)

    @cached_property
    def spans(self) -> AttentionSpans:
        """The spans of the attention of all sequences; there must be at least one new token."""
        return build_spans(self.slots, self.shared_lengths, self.ids.device)


def build_layout(
    sequences: Sequence[Tokens],
    device: torch.device,
    min_shared: int = MIN_SHARED,
    cached: Collection[int] = (),
    prefix_length: int = 0,
    tiling: TilingConfig | None = None,
) -> PackedLayout:
    """Pack sequences; each shares its prefix with the one before it, from `min_shared` tokens on.

    The keys and values of the sequences at the indices `cached` are already computed, so those
    sequences attend to nothing. The first `prefix_length` tokens of all sequences are already
    computed too, and are not among the N tokens: their slots are N, N + 1, ... By default `tiling`
    is that of the device.
    """
    slots, shared_lengths = _assign_slots(sequences, min_shared, prefix_length)
    fresh = list(zip(sequences, shared_lengths, strict=True))
    ids = np.concatenate([tokens[start:] for tokens, start in fresh]).astype(np.int64)
    positions = np.concatenate([np.arange(start, len(tokens)) for tokens, start in fresh])
    return PackedLayout(
        to_device(ids, device),
        to_device(positions, device),
        tuple(slots),
        tuple(shared_lengths),
        frozenset(cached),
        tiling or TILING[device.type],
    )


def to_device(array: Array, device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on a device."""
    return torch.from_numpy(array).to(device)


def _assign_slots(
    sequences: Sequence[Tokens], min_shared: int, prefix_length: int
) -> tuple[list[Array], list[int]]:
    """Return the slots of each sequence, and how many of them lie in earlier ones."""
    # Until N is known, the slots of the prefix begin at this number, which is at least N.
    prefix_start = sum(len(tokens) for tokens in sequences)
    slots: list[Array] = []
    shared_lengths: list[int] = []
    end = 0
    for index, tokens in enumerate(sequences):
        shared = shared_prefix_length(sequences[index - 1], tokens, min_shared) if index else 0
        start = max(shared, prefix_length)
        first, end = end, end + len(tokens) - start
        new = np.arange(first, end)
        before = slots[-1] if index else np.arange(prefix_length) + prefix_start
        slots.append(np.concatenate([before[:start], new]) if start else new)
        shared_lengths.append(start)
    if prefix_length:
        moved = end - prefix_start
        slots = [np.where(row < end, row, row + moved) for row in slots]
    return slots, shared_lengths


def _cut_into_tiles(
    slots: Sequence[Array],
    shared_lengths: Sequence[int],
    cached: Collection[int],
    config: TilingConfig,
) -> Iterator[Tile]:
    for index, (row, start) in enumerate(zip(slots, shared_lengths, strict=True)):
        if index in cached:
            continue
        size = min(config.max_queries, max(MIN_TILE, config.max_area // len(row)))
        count = -(-(len(row) - start) // size)
        edges = np.linspace(start, len(row), count + 1).astype(int).tolist() if count else []
        yield from ((first, row[:end]) for first, end in pairwise(edges))


def _batch_tiles(tiles: list[Tile], config: TilingConfig) -> list[list[Tile]]:
    """Batch tiles of similar size within the limits on area and padding."""
    batches: list[list[Tile]] = []
    for tile in sorted(tiles, key=lambda tile: (len(tile[1]), tile[0])):
        if batches and _fits([*batches[-1], tile], config):
            batches[-1].append(tile)
        else:
            batches.append([tile])
    return batches


def _fits(batch: list[Tile], config: TilingConfig) -> bool:
    """Return true if a batch of tiles is within the limits; the last tile has the most keys."""
    queries = max(len(slots) - first for first, slots in batch)
    padded_area = len(batch) * queries * len(batch[-1][1])
    area = sum((len(slots) - first) * len(slots) for first, slots in batch)
    return padded_area <= config.max_area and padded_area <= config.max_padding * area


def _tile_batch(batch: Sequence[Tile], device: torch.device) -> TileBatch:
    queries = max(len(slots) - first for first, slots in batch)
    keys = max(len(slots) for _, slots in batch)
    query_slots = np.zeros((len(batch), queries), np.int64)
    key_slots = np.zeros((len(batch), keys), np.int64)
    # a padding query attends to all real keys, so that its softmax is finite
    last_key = np.array([[len(slots) - 1] * queries for _, slots in batch])
    real = np.zeros((len(batch), queries), bool)
    key_runs = []
    for tile, (first, slots) in enumerate(batch):
        count = len(slots) - first
        query_slots[tile, :count] = slots[first:]
        key_slots[tile, : len(slots)] = slots
        last_key[tile, :count] = np.arange(first, len(slots))
        real[tile, :count] = True
        cuts = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)]
        key_runs += [(tile, begin, int(slots[begin]), end - begin) for begin, end in pairwise(cuts)]
    real_queries = np.flatnonzero(real)
    return TileBatch(
        to_device(query_slots, device),
        None if real.all() else to_device(~real, device),
        to_device(key_slots, device),
        to_device(real_queries, device),
        to_device(query_slots.ravel()[real_queries], device),
        tuple(key_runs),
        to_device(last_key, device),
    )

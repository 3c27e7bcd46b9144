"""How the tokens of a micro-batch lie: one after the other without padding, a shared beginning
once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch

from adapters.peft.batching.packing import LEAST, shared
from kitchen.types import Array, Tokens

LEAST_TILE = 128
KEPT = 1024  # keys, up to which what may not be attended to is kept from layer to layer


@dataclass(frozen=True)
class Cut:
    """How queries are cut into tiles."""

    # queries that attend together: what lies above the diagonal is computed within a tile alone;
    # fewer of
    tile: int
    # many keys, for the area's sake, but LEAST_TILE at least
    area: int  # of queries times keys, for each head, that are computed at once
    waste: float  # of the area, that padding may make of it


# by kind of device: little in vain on a CPU, few operations on a CUDA device
CUTS = MappingProxyType(
    {
        "cpu": Cut(LEAST_TILE, 2**18, 1.3),
        "cuda": Cut(512, 2**22, 4.0),
    }
)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Some runs of queries, each with all the keys before it; padded to one shape."""

    queries: torch.Tensor  # (B, t) where they lie; padded with 0
    padded: torch.Tensor | None  # (B, t) bool, if there is padding
    keys: torch.Tensor  # (B, S)
    real: torch.Tensor  # (M,) of the B·t queries, those that are no padding
    lie: torch.Tensor  # (M,) where these lie
    # row, first key, where it lies, how many lie there in a row
    runs: tuple[tuple[int, int, int, int], ...]
    depth: torch.Tensor  # (B, t) the last key that each query may attend to
    _biases: dict[tuple[int, int, torch.dtype], torch.Tensor] = field(default_factory=dict)

    @cached_property
    def known(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(M,) of the B·S keys, those that are no padding, and (M,) where these lie."""
        width = self.keys.shape[1]
        at = np.concatenate(
            [np.arange(first, first + length) + row * width for row, first, _, length in self.runs]
        )
        lie = np.concatenate([np.arange(lies, lies + length) for *_, lies, length in self.runs])
        return _on(self.keys.device, at), _on(self.keys.device, lie)

    @property
    def allowed(self) -> torch.Tensor:
        """(B, t, S) bool."""
        return torch.arange(self.keys.shape[1], device=self.depth.device) <= self.depth[:, :, None]

    def bias(self, groups: int, heads: int, dtype: torch.dtype) -> torch.Tensor:
        """(B · groups, heads · t, S), 0 where a query may attend.

        One for all layers that have these heads; of many keys it is made anew, for those of all
        tiles would take memory by the square of the tokens.
        """
        key = groups, heads, dtype
        if key in self._biases:
            return self._biases[key]
        allowed = self.allowed
        rows, queries, keys = allowed.shape
        bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
            ~allowed, float("-inf")
        )
        bias = (
            bias[:, None, None]
            .expand(rows, groups, heads, queries, keys)
            .reshape(rows * groups, -1, keys)
        )
        if keys <= KEPT:
            self._biases[key] = bias
        return bias


@dataclass(frozen=True, eq=False)
class Layout:
    """N tokens, where those of each sequence lie, and who attends to whom."""

    ids: torch.Tensor  # (N,)
    positions: torch.Tensor  # (N,) of each token in its sequences
    places: tuple[Array, ...]  # of each sequence, (T,) where its tokens lie
    starts: tuple[int, ...]  # of each sequence, how many of its tokens lie in an earlier one
    tiles: tuple[Tiles, ...]


def lay_out(
    sequences: Sequence[Tokens],
    device: torch.device,
    least: int = LEAST,
    known: Collection[int] = (),
    begins: int = 0,
) -> Layout:
    """A sequence shares what it begins with with the one before it, from `least` tokens on.

    Of `known` ones, by their places, keys and values are there already: they attend to nothing. So
    are those of the first so many tokens of all of them, which are not among the N and whose keys
    lie behind.
    """
    ends = np.cumsum([len(tokens) for tokens in sequences])  # at the latest
    places: list[Array] = []
    starts: list[int] = []
    end = 0
    for index, tokens in enumerate(sequences):
        start = max(shared(sequences[index - 1], tokens, least) if index else 0, begins)
        own = np.arange(end, end := end + len(tokens) - start)
        before = places[-1] if index else np.arange(begins) + ends[-1]
        places.append(np.concatenate([before[:start], own]) if start else own)
        starts.append(start)
    places = (
        [np.where(mine < end, mine, mine - ends[-1] + end) for mine in places] if begins else places
    )
    fresh = list(zip(sequences, starts, strict=True))
    ids = np.concatenate([tokens[start:] for tokens, start in fresh]).astype(np.int64)
    positions = np.concatenate([np.arange(start, len(tokens)) for tokens, start in fresh])
    cut = CUTS[device.type]
    tiles = tuple(
        _tiles(batch, device) for batch in _batched(list(_cut(places, starts, known, cut)), cut)
    )
    on = partial(_on, device)
    return Layout(on(ids), on(positions), tuple(places), tuple(starts), tiles)


def _cut(
    places: Sequence[Array], starts: Sequence[int], known: Collection[int], cut: Cut
) -> Iterator[tuple[int, Array]]:
    """Tiles as (first query, places of all up to the last query)."""
    for index, (mine, start) in enumerate(zip(places, starts, strict=True)):
        tile = min(cut.tile, max(LEAST_TILE, cut.area // len(mine)))
        count = 0 if index in known else -(-(len(mine) - start) // tile)
        edges = np.linspace(start, len(mine), count + 1).astype(int).tolist() if count else []
        yield from ((first, mine[:end]) for first, end in pairwise(edges))


def _batched(tiles: list[tuple[int, Array]], cut: Cut) -> list[list[tuple[int, Array]]]:
    """Those of nearly one size together."""
    batches: list[list[tuple[int, Array]]] = []
    for tile in sorted(tiles, key=lambda tile: (len(tile[1]), tile[0])):
        if batches:
            wider = [*batches[-1], tile]
            area = len(wider) * max(len(p) - first for first, p in wider) * len(tile[1])
            if area <= cut.area and area <= cut.waste * sum(
                (len(p) - first) * len(p) for first, p in wider
            ):
                batches[-1].append(tile)
                continue
        batches.append([tile])
    return batches


def _tiles(batch: Sequence[tuple[int, Array]], device: torch.device) -> Tiles:
    most = max(len(places) - first for first, places in batch)
    width = max(len(places) for _, places in batch)
    queries, keys = np.zeros((len(batch), most), np.int64), np.zeros((len(batch), width), np.int64)
    # of a padded query: to whatever there is
    depth = np.array([[len(places) - 1] * most for _, places in batch])
    real = np.zeros((len(batch), most), bool)
    runs = []
    for row, (first, places) in enumerate(batch):
        count = len(places) - first
        queries[row, :count], keys[row, : len(places)] = places[first:], places
        depth[row, :count], real[row, :count] = np.arange(first, len(places)), True
        cuts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        runs += [(row, begin, int(places[begin]), end - begin) for begin, end in pairwise(cuts)]
    at = np.flatnonzero(real)
    on = partial(_on, device)
    padded = None if real.all() else on(~real)
    return Tiles(
        on(queries), padded, on(keys), on(at), on(queries.ravel()[at]), tuple(runs), on(depth)
    )


def _on(device: torch.device, array: Array) -> torch.Tensor:
    return torch.from_numpy(array).to(device)

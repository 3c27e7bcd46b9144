"""Prompts that are read together, each from where what is known of it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from adapters.peft.batching.packed_layout import lay_out
from adapters.peft.batching.packing import pack, padded, shared
from adapters.peft.sampling.conversation_cache import Keys
from adapters.peft.sampling.kv_grid import Grid, key, picked
from kitchen.types import Array, Tokens


@dataclass(frozen=True, eq=False)
class Place:
    """A prompt and its place in a grid."""

    prompt: Tokens
    grid: Grid
    number: int
    known: Keys | None  # of what it begins with


def batches(places: Sequence[Place], budget: int) -> Iterator[list[Place]]:
    """Those that are read together, of what is known of them none counted.

    If they have more in common than is known of them, they are read as if it were not.
    """
    new = [place for place in places if place.known is None]
    known = sum(place.known.shape[1] for place in places if place.known is not None)
    if known and _common(places) > known + _common(new):
        places = [replace(place, known=None) for place in places]
    new = [place for place in places if place.known is None]
    for run in pack([place.prompt for place in new], budget):
        yield [new[at] for at in run]
    begun = [
        (place, len(place.prompt) - place.known.shape[1])
        for place in places
        if place.known is not None
    ]
    for run in padded([left for _, left in begun], budget):
        yield [begun[at][0] for at in run]


def _common(places: Sequence[Place]) -> int:
    """How many tokens need not be read because others begin with them too."""
    ordered = sorted((place.prompt for place in places), key=key)
    return sum(shared(one, other) for one, other in pairwise(ordered))


class Reading:
    """How the tokens of some prompts lie, those that are known and `fresh` ones, N in all."""

    def __init__(self, places: Sequence[Place], device: torch.device) -> None:
        sequences, known, whole = list[Tokens](), dict[int, Keys](), list[int]()
        for place in places:
            if place.known is not None:
                known[len(sequences)] = place.known
                sequences.append(place.prompt[: place.known.shape[1]])
            whole.append(len(sequences))
            sequences.append(place.prompt)
        self.layout = lay_out(sequences, device, known=known)
        lies, starts = self.layout.places, self.layout.starts
        fresh, ends = (
            np.concatenate([lies[at][starts[at] :] for at in whole]),
            np.array([lies[at][-1] for at in whole]),
        )
        self.fresh = picked(fresh, device)  # (n,) where they lie
        # (P,) where the last token of each prompt lies
        self.ends = torch.from_numpy(ends).to(device)
        # (P,) the same among the fresh ones
        self.last = torch.from_numpy(np.searchsorted(fresh, ends)).to(device)
        self.spots = list(_spots(places, [lies[at] for at in whole], device))
        self._known = (
            torch.cat([keys[:, starts[at] :] for at, keys in known.items()], 1) if known else None
        )
        self._lie = torch.from_numpy(
            np.concatenate([lies[at][starts[at] :] for at in known] or [fresh])
        ).to(device)

    def whole(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """(n, heads + 2 · groups, D) of the fresh ones to (N, heads + 2 · groups, D)."""
        if self._known is None:
            return qkv
        found = qkv.new_zeros(len(self.layout.ids), *qkv.shape[1:])
        found[self.fresh] = qkv
        found[self._lie, -self._known.shape[2] :] = self._known[layer]
        return found


def _spots(
    places: Sequence[Place], lies: Sequence[Array], device: torch.device
) -> Iterator[tuple[Grid, list[int], torch.Tensor]]:
    """Of each grid its prompts, and where their tokens lie, (p, S), padded with 0."""
    for grid in dict.fromkeys(place.grid for place in places):
        mine = [index for index, place in enumerate(places) if place.grid is grid]
        spots = np.zeros((len(mine), max(len(lies[index]) for index in mine)), np.int64)
        for row, index in enumerate(mine):
            spots[row, : len(lies[index])] = lies[index]
        yield grid, [places[index].number for index in mine], torch.from_numpy(spots).to(device)

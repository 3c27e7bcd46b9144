"""Keys and values of prompts, each there once, and of the completions that are written after each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kitchen.types import Array, Tokens

BLOCK = 32  # tokens of a completion that there is room for at first; then twice as many, and so on
WASTE, SPARE = 1.3, 1024  # how many times the prompts' tokens, and how many more, padding may make of them
HOLES = 2  # times the completions there may be places for them
SPARSE = 0.75  # of a grid's places in use, below which it is made smaller


@dataclass(frozen=True)
class Heads:
    """How a layer attends: so many query heads, in groups that share a head of keys and values."""

    queries: int
    groups: int
    width: int
    scale: float

    @property
    def shared(self) -> int:
        """Query heads of a group."""
        return self.queries // self.groups


def arrange(prompts: Sequence[Tokens]) -> list[Array]:
    """Numbers of equal prompts in a row, (P, L) padded with -1, for grids of prompts of nearly one length."""
    alike: dict[bytes, list[int]] = {}
    for number, prompt in enumerate(prompts):
        alike.setdefault(key(prompt), []).append(number)
    grids: list[list[list[int]]] = []
    for group in sorted(alike.values(), key=lambda group: (-len(prompts[group[0]]), -len(group))):
        wider = [*grids[-1], group] if grids else [group]
        lengths, counts = [len(prompts[each[0]]) for each in wider], [len(each) for each in wider]
        if (len(wider) * max(lengths) <= WASTE * sum(lengths) + SPARE
                and len(wider) * max(counts) <= HOLES * (sum(counts) + SPARE // BLOCK)):
            grids[-1:] = [wider]
        else:
            grids.append([group])
    return [np.array([each + [-1] * (max(map(len, grid)) - len(each)) for each in grid]) for grid in grids]


def key(prompt: Tokens) -> bytes:
    """What equal prompts have in common."""
    return np.asarray(prompt, np.int64).tobytes()


class Grid:
    """P prompts, and beside each the L completions of it, which all have begun at the same time.

    What is asked of a prompt by all the heads and completions that share its keys is one product.
    """

    def __init__(self, heads: Heads, layers: int, rows: Array, lengths: Sequence[int], like: torch.Tensor) -> None:
        """`rows` (P, L) says which row of the batch writes where, -1 where none does; `lengths` (P,) in tokens."""
        self.rows, self.lengths, self.written = rows, np.array(lengths), 0  # tokens of each completion
        self._heads = heads
        prompts, cells, width = len(rows) * heads.groups, rows.size * heads.groups, heads.width
        self._read = like.new_zeros(layers, 2, prompts, max(lengths), width)  # what is masked must be finite
        self._own = like.new_empty(layers, 2, cells, BLOCK, width)
        self._look()

    def put(self, layer: int, prompts: Sequence[int], read: torch.Tensor) -> None:
        """(p, S, 2 · groups, D) keys and values of a layer, of some prompts; padded on the right."""
        count, source, _, width = read.shape
        found = read.view(count, source, 2, self._heads.groups, width).permute(2, 0, 3, 1, 4)
        self._read[layer].view(2, len(self.rows), -1, *self._read.shape[3:])[:, list(prompts), :, :source] = found

    def take(self, prompt: int) -> torch.Tensor:
        """(layers, S, 2 · groups, D) of one prompt, as `put` takes it layer by layer."""
        groups, length = self._heads.groups, int(self.lengths[prompt])
        found = self._read[:, :, prompt * groups : (prompt + 1) * groups, :length]
        return found.permute(0, 3, 1, 2, 4).flatten(2, 3)

    def advance(self) -> None:
        """Make room for a token more of each completion."""
        capacity = self._own.shape[3]
        if self.written == capacity:
            self._own = torch.cat([self._own, torch.empty_like(self._own)], 3)
        self.written += 1

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """(R, queries + 2 · groups, D) of the newest tokens to (P · groups · L · shared, D)."""
        heads, cells = self._heads, self._own.shape[2]
        found = qkv.view(-1, heads.width).index_select(0, self._into)
        query = found[: cells * heads.shared]
        self._own[layer, :, :, self.written - 1] = found[len(query) :].view(2, cells, heads.width)
        (keys, values), (own_keys, own_values) = self._read[layer], self._own[layer, :, :, : self.written]
        stacked = query.view(len(keys), -1, heads.width)
        bias, beta = (self._bias, 1) if self._bias is not None else (query[:1, :1], 0)
        scores = torch.cat([
            torch.baddbmm(bias, stacked, keys.transpose(1, 2), beta=beta, alpha=heads.scale),
            torch.baddbmm(query[:1, :1], query.view(cells, -1, heads.width), own_keys.transpose(1, 2), beta=0,
                          alpha=heads.scale).view(*stacked.shape[:2], -1)], -1)
        weights = torch.softmax(scores, -1)
        length = keys.shape[1]
        of_prompt = torch.bmm(weights[..., :length], values).view(cells, -1, heads.width)
        out = torch.baddbmm(of_prompt, weights.view(cells, heads.shared, -1)[..., length:], own_values)
        return out.view(-1, heads.width)

    def keep(self, number: Array) -> bool:
        """`number` (R,) gives every row of the batch its new one, -1 if it has ended; returns whether any is here."""
        self.rows = np.where(self.rows >= 0, number[self.rows], -1)
        alive = self.rows >= 0
        prompts, lanes = np.flatnonzero(alive.any(1)), int(alive.sum(1).max())
        if lanes and len(prompts) * lanes <= SPARSE * alive.size:
            self._shrink(prompts, np.argsort(~alive[prompts], axis=1, kind="stable")[:, :lanes])
        if lanes:
            self._look()
        return bool(lanes)

    @property
    def back(self) -> tuple[Array, Array]:
        """(r,) rows of the batch that write here, and (r, queries) where in what `attend` gives their answers lie."""
        prompts, lanes = np.nonzero(self.rows >= 0)
        groups, shared = self._heads.groups, self._heads.shared
        cells = (prompts[:, None] * groups + np.arange(groups)) * self.rows.shape[1] + lanes[:, None]
        return self.rows[prompts, lanes], (cells[..., None] * shared + np.arange(shared)).reshape(len(prompts), -1)

    def _shrink(self, prompts: Array, lanes: Array) -> None:
        """Keep these prompts, and of each these lanes, (P, L)."""
        groups, count = np.arange(self._heads.groups), self.rows.shape[1]
        of_groups = prompts[:, None] * len(groups) + groups
        cells = of_groups[:, :, None] * count + lanes[:, None]
        self.rows, self.lengths = self.rows[prompts[:, None], lanes], self.lengths[prompts]
        self._read = self._read[:, :, :, : max(self.lengths)].index_select(2, self._on(of_groups))
        self._own = self._own.index_select(2, self._on(cells))

    def _look(self) -> None:
        """Where in (R · (queries + 2 · groups), D) its queries, keys and values lie; what of its prompts is padding."""
        heads, first = self._heads, np.maximum(self.rows, 0)[:, None] * (self._heads.queries + 2 * self._heads.groups)
        group = np.arange(heads.groups)[:, None]
        queries = (first + group * heads.shared)[..., None] + np.arange(heads.shared)
        keys = first + heads.queries + group
        self._into = self._on(np.concatenate([queries.ravel(), keys.ravel(), (keys + heads.groups).ravel()]))
        length = self._read.shape[3]
        padded = np.arange(length) >= self.lengths[:, None]
        self._bias: torch.Tensor | None = None
        if padded.any():
            bias = np.repeat(np.where(padded, -np.inf, 0.0), heads.groups, 0)[:, None]
            self._bias = torch.from_numpy(bias).to(self._read)

    def _on(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array.ravel()).to(self._read.device)

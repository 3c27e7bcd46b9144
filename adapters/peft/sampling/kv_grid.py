"""Keys and values of prompts, each there once, and of the completions that are written after each
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kitchen.types import Array, Tokens

BLOCK = 32  # tokens of a completion that there is room for at first; then twice as many, and so on
# how many times the prompts' tokens, and how many more, padding may make of them
WASTE, SPARE = 1.3, 1024
# devices where one completion attends by torch's kernel; on CUDA that is chosen anew
BY_KERNEL = frozenset({"cpu"})
# for each length, which takes 60 ms (docs/benchmarks.md)
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
    """Numbers of equal prompts in a row, (P, L) padded with -1, for grids of prompts of nearly one
    length.
    """
    alike: dict[bytes, list[int]] = {}
    for number, prompt in enumerate(prompts):
        alike.setdefault(key(prompt), []).append(number)
    grids: list[list[list[int]]] = []
    for group in sorted(alike.values(), key=lambda group: (-len(prompts[group[0]]), -len(group))):
        wider = [*grids[-1], group] if grids else [group]
        lengths, counts = [len(prompts[each[0]]) for each in wider], [len(each) for each in wider]
        if len(wider) * max(lengths) <= WASTE * sum(lengths) + SPARE and len(wider) * max(
            counts
        ) <= HOLES * (sum(counts) + SPARE // BLOCK):
            grids[-1:] = [wider]
        else:
            grids.append([group])
    return [
        np.array([each + [-1] * (max(map(len, grid)) - len(each)) for each in grid])
        for grid in grids
    ]


def key(prompt: Tokens) -> bytes:
    """What equal prompts have in common."""
    return np.asarray(prompt, np.int64).tobytes()


class Grid:
    """P prompts, and beside each the L completions of it, which all have begun at the same time.

    What is asked of a prompt by all the heads and completions that share its keys is one product.
    The keys of one completion alone lie behind its prompt's, so that there is no second product.
    """

    def __init__(
        self, heads: Heads, layers: int, rows: Array, lengths: Sequence[int], like: torch.Tensor
    ) -> None:
        """`rows` (P, L) says which row of the batch writes where, -1 where none does; `lengths`
        (P,) in tokens.
        """
        # tokens of each completion
        self.rows, self.lengths, self.written = rows, np.array(lengths), 0
        # tokens that there is room for in front of completions
        self._heads, self._front = heads, max(lengths)
        prompts, cells, width = len(rows) * heads.groups, rows.size * heads.groups, heads.width
        # what is masked must be finite
        self._read = like.new_zeros(layers, 2, prompts, self._front, width)
        self._own: torch.Tensor | None = like.new_empty(layers, 2, cells, BLOCK, width)
        self._settle()

    def put(self, layer: int, prompts: Sequence[int], read: torch.Tensor) -> None:
        """(p, S, 2 · groups, D) keys and values of a layer, of some prompts; padded on the right."""
        count, source, _, width = read.shape
        found = read.view(count, source, 2, self._heads.groups, width).permute(2, 0, 3, 1, 4)
        self._read[layer].view(2, len(self.rows), -1, *self._read.shape[3:])[
            :, list(prompts), :, :source
        ] = found

    def take(self, prompt: int) -> torch.Tensor:
        """(layers, S, 2 · groups, D) of one prompt, as `put` takes it layer by layer."""
        groups, length = self._heads.groups, int(self.lengths[prompt])
        found = self._read[:, :, prompt * groups : (prompt + 1) * groups, :length]
        return found.permute(0, 3, 1, 2, 4).flatten(2, 3)

    def place(self, row: int) -> tuple[int, int] | None:
        """Which prompt a row of the batch writes after, and as which completion; None if it writes
        elsewhere.
        """
        found = np.argwhere(self.rows == row)
        return (int(found[0, 0]), int(found[0, 1])) if len(found) else None

    def length(self, prompt: int) -> int:
        """Tokens of a prompt and of what is written after it."""
        return int(self.lengths[prompt]) + self.written

    def whole(self, prompt: int, lane: int) -> torch.Tensor:
        """(layers, S + written, 2 · groups, D) of a prompt and one of its completions."""
        groups, count = self._heads.groups, self.rows.shape[1]
        if self._own is None:
            own = self._read[
                :,
                :,
                prompt * groups : (prompt + 1) * groups,
                self._front : self._front + self.written,
            ]
        else:
            cells = slice(prompt * groups * count + lane, (prompt + 1) * groups * count, count)
            own = self._own[:, :, cells, : self.written]
        return torch.cat([self.take(prompt), own.permute(0, 3, 1, 2, 4).flatten(2, 3)], 1)

    def advance(self) -> None:
        """Make room for a token more of each completion."""
        if self._own is None:
            if self._front + self.written == self._read.shape[3]:
                self._read = _longer(self._read, self.written)
                self._settle()
        elif self.written == self._own.shape[3]:
            self._own = _longer(self._own, self.written)
        self.written += 1

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """(R, queries + 2 · groups, D) of the newest tokens to (P · groups · L · shared, D)."""
        heads, cells = self._heads, self.rows.size * self._heads.groups
        found = pick(qkv.view(-1, heads.width), self._into)
        query, new = (
            found[: cells * heads.shared],
            found[cells * heads.shared :].view(2, cells, heads.width),
        )
        out = (
            self._alone(layer, query, new)
            if self._own is None
            else self._beside(layer, self._own, query, new)
        )
        return out.view(-1, heads.width)

    def _alone(self, layer: int, query: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        end = self._front + self.written
        self._read[layer, :, :, end - 1] = new
        keys, values = self._read[layer, :, :, :end]
        bias = None if self._bias is None else self._bias[..., :end]
        if keys.device.type not in BY_KERNEL:
            return torch.bmm(torch.softmax(self._scores(query, keys, bias), -1), values)
        stacked = query.view(1, len(keys), -1, self._heads.width)
        return scaled_dot_product_attention(
            stacked,
            keys[None],
            values[None],
            None if bias is None else bias[None],
            scale=self._heads.scale,
        )

    def _beside(
        self, layer: int, own: torch.Tensor, query: torch.Tensor, new: torch.Tensor
    ) -> torch.Tensor:
        own[layer, :, :, self.written - 1] = new
        (keys, values), (own_keys, own_values) = self._read[layer], own[layer, :, :, : self.written]
        of_prompt = self._scores(query, keys, self._bias)
        of_own = self._scores(query, own_keys, None).view(*of_prompt.shape[:2], -1)
        weights = torch.softmax(torch.cat([of_prompt, of_own], -1), -1)
        read = torch.bmm(weights[..., : keys.shape[1]], values).view(
            len(own_keys), -1, self._heads.width
        )
        written = weights.view(len(own_keys), self._heads.shared, -1)[..., keys.shape[1] :]
        return torch.baddbmm(read, written, own_values)

    def _scores(
        self, query: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """(·, D) and (K, S, D) to (K, ·, S)."""
        stacked, beta = query.view(len(keys), -1, self._heads.width), 0 if bias is None else 1
        return torch.baddbmm(
            query[:1, :1] if bias is None else bias,
            stacked,
            keys.transpose(1, 2),
            beta=beta,
            alpha=self._heads.scale,
        )

    def keep(self, number: Array) -> bool:
        """`number` (R,) gives every row of the batch its new one, -1 if it has ended; returns
        whether any is here.
        """
        self.rows = np.where(self.rows >= 0, number[self.rows], -1)
        alive = self.rows >= 0
        prompts, lanes = np.flatnonzero(alive.any(1)), int(alive.sum(1).max())
        if lanes and len(prompts) * lanes <= SPARSE * alive.size:
            self._shrink(prompts, np.argsort(~alive[prompts], axis=1, kind="stable")[:, :lanes])
        if lanes:
            self._settle()
        return bool(lanes)

    @property
    def back(self) -> tuple[Array, Array]:
        """(r,) rows of the batch that write here, and (r, queries) where in what `attend` gives
        their answers lie.
        """
        prompts, lanes = np.nonzero(self.rows >= 0)
        groups, shared = self._heads.groups, self._heads.shared
        cells = (prompts[:, None] * groups + np.arange(groups)) * self.rows.shape[1] + lanes[
            :, None
        ]
        return self.rows[prompts, lanes], (cells[..., None] * shared + np.arange(shared)).reshape(
            len(prompts), -1
        )

    def _shrink(self, prompts: Array, lanes: Array) -> None:
        """Keep these prompts, and of each these lanes, (P, L)."""
        groups, count = np.arange(self._heads.groups), self.rows.shape[1]
        of_groups = prompts[:, None] * len(groups) + groups
        cells = of_groups[:, :, None] * count + lanes[:, None]
        self.rows, self.lengths = self.rows[prompts[:, None], lanes], self.lengths[prompts]
        self._read = self._read.index_select(
            2, torch.from_numpy(of_groups.ravel()).to(self._read.device)
        )
        if self._own is not None:
            self._front = max(self.lengths)
            self._read = self._read[:, :, :, : self._front].contiguous()
            self._own = self._own.index_select(
                2, torch.from_numpy(cells.ravel()).to(self._read.device)
            )

    def _settle(self) -> None:
        """Where in (R · (queries + 2 · groups), D) its queries, keys and values lie; what of its
        prompts is padding.
        """
        if self._own is not None and self.rows.shape[1] == 1:
            self._read, self._own = torch.cat([self._read, self._own], 3), None
        heads, first = (
            self._heads,
            np.maximum(self.rows, 0)[:, None] * (self._heads.queries + 2 * self._heads.groups),
        )
        group = np.arange(heads.groups)[:, None]
        queries = (first + group * heads.shared)[..., None] + np.arange(heads.shared)
        keys = first + heads.queries + group
        into = np.concatenate([queries.ravel(), keys.ravel(), (keys + heads.groups).ravel()])
        self._into = picked(into, self._read.device)
        spots = np.arange(self._read.shape[3])
        padded = (spots >= self.lengths[:, None]) & (spots < self._front)
        self._bias: torch.Tensor | None = None
        if padded.any():
            bias = np.repeat(np.where(padded, -np.inf, 0.0), heads.groups, 0)[:, None]
            self._bias = torch.from_numpy(bias).to(self._read)


def pick(found: torch.Tensor, rows: torch.Tensor | slice) -> torch.Tensor:
    """(N, D) to (r, D)."""
    return found[rows] if isinstance(rows, slice) else found.index_select(0, rows)


def picked(rows: Array, device: torch.device) -> torch.Tensor | slice:
    """What `pick` takes: a slice, which copies nothing, where they are the first ones in their
    order.
    """
    flat = rows.ravel()
    return (
        slice(len(flat))
        if np.array_equal(flat, np.arange(len(flat)))
        else torch.from_numpy(flat).to(device)
    )


def _longer(kept: torch.Tensor, more: int) -> torch.Tensor:
    return torch.cat([kept, kept.new_empty(*kept.shape[:3], more, kept.shape[4])], 3)

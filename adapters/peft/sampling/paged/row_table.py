"""The state of the rows of a batch: their lengths and pages, on the host and on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from adapters.peft.sampling.paged.kernels import END, LIVE, PAGE
from adapters.peft.sampling.paged.pages import PagedPrompt, PageStore
from kitchen.types import Array

MIN_TABLE = 8  # pages per row


class RowTable:
    """Rows, each with a prompt and the pages of its completion.

    The device itself advances all rows by one slot per step. All other changes are copied to it
    before the next step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.prompts = list[PagedPrompt]()  # of each row
        self.changed = True  # since the last upload
        self._rows = np.zeros((4, 0), np.int32)  # as `Batch.rows`
        self._table = np.zeros((0, MIN_TABLE), np.int32)
        self.rows = torch.empty(0)  # (4, capacity) and (capacity, W) on the device
        self.table = torch.empty(0)

    @property
    def capacity(self) -> int:
        """Rows that there is room for."""
        return len(self._table)

    @property
    def width(self) -> int:
        """Pages of a row that there is room for."""
        return self._table.shape[1]

    def reserve(self, rows: int, pages: int) -> bool:
        """Make room for this many rows and pages of a row; return whether tensors were replaced."""
        rows = max(rows, self.capacity)
        pages = max(1 << (pages - 1).bit_length(), self.width)
        if (rows, pages) == self._table.shape:
            return False
        more = rows - self.capacity
        self._rows = np.pad(self._rows, ((0, 0), (0, more)))
        self._table = np.pad(self._table, ((0, more), (0, pages - self.width)))
        self.rows = torch.zeros(4, rows, dtype=torch.int32, device=self._device)
        self.table = torch.zeros(rows, pages, dtype=torch.int32, device=self._device)
        self.changed = True
        return True

    def clear(self) -> None:
        """Remove all rows, whose pages are freed by someone else."""
        self.prompts = []
        self._rows[:] = 0
        self._table[:] = 0
        self.changed = True

    def append(self, prompts: Sequence[PagedPrompt]) -> None:
        """Add one row for each prompt; there must be room."""
        for row, prompt in enumerate(prompts, len(self.prompts)):
            pages = len(prompt.pages)
            self._rows[:, row] = pages * PAGE, len(prompt.tokens), pages * PAGE, 1
            self._table[row, :pages] = prompt.pages
        self.prompts = self.prompts + list(prompts)
        self.changed = True

    def widest(self) -> int:
        """Return the most pages of a row after the next step."""
        return int(self._rows[END, : len(self.prompts)].max(initial=0)) // PAGE + 1

    def start_step(self, store: PageStore) -> None:
        """Take a page for each row whose next token does not fit into its last one."""
        ends = self._rows[END, : len(self.prompts)]
        full = np.flatnonzero(ends % PAGE == 0)
        if len(full):
            self._table[full, ends[full] // PAGE] = store.take(len(full))
            self.changed = True

    def finish_step(self) -> None:
        """Count the token that the device has added to each row."""
        self._rows[END] += self._rows[LIVE]

    def upload(self, count: int) -> None:
        """Copy the state of the first rows to the device, if it has changed."""
        if self.changed:
            self.rows[:, :count].copy_(torch.from_numpy(self._rows[:, :count]))
            self.table[:count].copy_(torch.from_numpy(self._table[:count]))
            self.changed = False

    def completion_pages(self, row: int) -> list[int]:
        """Return the pages of a row that are not those of its prompt."""
        end, _, start, _ = self._rows[:, row]
        pages: list[int] = self._table[row, start // PAGE : -(-end // PAGE)].tolist()
        return pages

    def sequence(self, row: int) -> tuple[Array, Array]:
        """Return the pages of a row, and the slots of its tokens."""
        end, prompt, start, _ = self._rows[:, row]
        return self._table[row], np.concatenate([np.arange(prompt), np.arange(start, end)])

    def length(self, row: int) -> int:
        """Return the tokens of a row."""
        end, prompt, start, _ = self._rows[:, row]
        return int(prompt + end - start)

    def retain(self, rows: Sequence[int]) -> None:
        """Remove all rows but these, which stay in this order."""
        before = len(self.prompts)
        self._rows[:, : len(rows)] = self._rows[:, list(rows)]
        self._table[: len(rows)] = self._table[list(rows)]
        self._rows[:, len(rows) : before] = 0
        self._table[len(rows) : before] = 0
        self.prompts = [self.prompts[row] for row in rows]
        self.changed = True

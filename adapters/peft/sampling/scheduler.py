"""Many completions at once, token by token; when some have ended, those that wait take their place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Protocol

import torch

from adapters.peft.sampling.conversation_cache import Keys
from adapters.peft.sampling.draw import Row, Spell, draw
from adapters.peft.sampling.kv_grid import key
from kitchen.types import Tokens

READ = 8192  # tokens of prompts that are read before others may have their turn


class Body(Protocol):
    """The rows of a batch, each of which has read a prompt and writes after it, all of them a token
    at a time.
    """

    @property
    def joined(self) -> float:
        """The share of the rows that there may be, from which on downwards others join."""
        ...

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """(r, H) to (r, V)."""
        ...

    def read(self, prompts: Sequence[Tokens], later: Collection[bytes]) -> torch.Tensor:
        """A row more for each of the prompts; returns their (r, H) states. `later`: keys of prompts
        that come next.
        """
        ...

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """(R,) newest tokens of the rows to their (R, H) states."""
        ...

    def keep(self, staying: Sequence[int]) -> None:
        """These rows alone go on, in this order."""
        ...

    def keys(self, row: int) -> Keys | None:
        """Of what a row has read and written; None where it will be read again."""
        ...


class Writing:
    """Rows on their way to their ends, at most so many at once; who joins when follows from what
    was written alone.
    """

    def __init__(
        self, body: Body, rows: Sequence[Row], spell: Spell, high: torch.dtype, most: int
    ) -> None:
        self._body, self._spell, self._high, self._most = body, spell, high, most
        self._waiting, self._live = deque(rows), list[Row]()
        self._states, self._joining = torch.empty(0), False
        # what has been read of rows that have ended, by `key`
        self.ended: dict[bytes, Keys | None] = {}

    def go_on(self, steps: int) -> bool:
        """So many tokens more for each; whether there is more to write. What nobody waits for any
        more is dropped.
        """
        with torch.inference_mode():
            self._waiting = deque(row for row in self._waiting if not row.request.work.cancelled())
            staying = [
                place for place, row in enumerate(self._live) if not row.request.work.cancelled()
            ]
            self._states = self._keep(staying, self._states)
            read = 0
            for _ in range(steps):
                if not (self._waiting or self._live):
                    return False
                if self._waiting and (
                    self._joining or len(self._live) <= self._body.joined * self._most
                ):
                    read += self._join()
                    if self._joining or read >= READ:
                        return True  # to read many prompts takes as long as to write
                else:
                    self._step()
        return bool(self._waiting or self._live)

    def _step(self) -> None:
        tokens, logprobs = draw(self._body.logits(self._states), self._live, self._high)
        tokens = self._keep(_write(self._live, tokens, logprobs, self._spell), tokens)
        if self._live:
            self._states = self._body.step(tokens)

    def _join(self) -> int:
        """As many as there is room for, or as have enough to read; then the next ones join before
        any writes.

        Returns how many tokens they have to read.
        """
        fresh, room, tokens = list[Row](), self._most - len(self._live), 0
        enough = READ if self._body.joined else math.inf  # none joins later where none can
        while self._waiting and len(fresh) < room and tokens < enough:
            fresh.append(self._waiting.popleft())
            alike = len(fresh) > 1 and fresh[-2].request.prompt is fresh[-1].request.prompt
            tokens += 0 if alike else len(fresh[-1].request.prompt)
        self._joining = len(fresh) < room and bool(self._waiting)
        later = {key(row.request.prompt) for row in islice(self._waiting, self._most)}
        read = self._body.read([row.request.prompt for row in fresh], later)
        self._states, self._live = (
            torch.cat([self._states, read]) if self._live else read,
            self._live + fresh,
        )
        return tokens

    def _keep(self, staying: Sequence[int], beside: torch.Tensor) -> torch.Tensor:
        """Of the rows these alone, and of what lies beside them too."""
        if len(staying) == len(self._live):
            return beside
        for place, row in enumerate(self._live):
            if row.reason and self.ended.get(said := key(row.said())) is None:
                self.ended[said] = self._body.keys(place) if row.goes_on else None
        kept = torch.tensor(staying, dtype=torch.int64, device=beside.device)
        self._live = [self._live[place] for place in staying]
        self._body.keep(staying)
        return beside[kept]


def _write(
    live: Sequence[Row], tokens: torch.Tensor, logprobs: torch.Tensor, spell: Spell
) -> list[int]:
    """A token more for each row; returns the places of those that go on."""
    found = torch.stack([tokens.double(), logprobs.double()]).tolist()  # from the device in one go
    for row, token, logprob in zip(live, *found, strict=True):
        row.add(int(token), logprob, spell)
    return [place for place, row in enumerate(live) if not row.reason]

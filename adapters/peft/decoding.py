"""Many completions at once, token by token; when some have ended, those that wait take their place."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Protocol

import torch

from adapters.peft.drawing import Row, Spell, draw
from adapters.peft.grid import key
from kitchen.types import Tokens


class Body(Protocol):
    """The rows of a batch, each of which has read a prompt and writes after it, all of them a token at a time."""

    @property
    def joined(self) -> float:
        """The share of the rows that there may be, from which on downwards others join."""
        ...

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """(r, H) to (r, V)."""
        ...

    def read(self, prompts: Sequence[Tokens], later: Collection[bytes]) -> torch.Tensor:
        """A row more for each of the prompts; returns their (r, H) states. `later`: keys of prompts that come next."""
        ...

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """(R,) newest tokens of the rows to their (R, H) states."""
        ...

    def keep(self, staying: Sequence[int]) -> None:
        """These rows alone go on, in this order."""
        ...


def complete(body: Body, rows: Sequence[Row], spell: Spell, high: torch.dtype, most: int) -> None:
    """Write every row to its end, at most so many at once; who joins when follows from what was written alone."""
    waiting, live = deque(rows), list[Row]()
    states = torch.empty(0)
    with torch.inference_mode():
        while waiting or live:
            if waiting and len(live) <= body.joined * most:
                fresh = [waiting.popleft() for _ in range(min(most - len(live), len(waiting)))]
                later = {key(row.request.prompt) for row in islice(waiting, most)}
                read = body.read([row.request.prompt for row in fresh], later)
                states, live = torch.cat([states, read]) if live else read, live + fresh
            tokens, logprobs = draw(body.logits(states), live, high)
            staying = _write(live, tokens, logprobs, spell)
            if len(staying) < len(live):
                kept = torch.tensor(staying, dtype=torch.int64, device=tokens.device)
                live, tokens = [live[place] for place in staying], tokens[kept]
                body.keep(staying)
            if live:
                states = body.step(tokens)


def _write(live: Sequence[Row], tokens: torch.Tensor, logprobs: torch.Tensor, spell: Spell) -> list[int]:
    """A token more for each row; returns the places of those that go on."""
    found = torch.stack([tokens.double(), logprobs.double()]).tolist()  # from the device in one go
    for row, token, logprob in zip(live, *found, strict=True):
        row.add(int(token), logprob, spell)
    return [place for place, row in enumerate(live) if not row.reason]

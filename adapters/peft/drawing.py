"""The next token of each of some rows, and where a completion ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from adapters.peft.requests import Sampling
from kitchen.types import Sampled

Spell = Callable[[Sequence[int]], str]


@dataclass(eq=False)
class Row:
    """One completion as it is written."""

    request: Sampling
    index: int  # among the completions of its request
    room: int  # tokens that it may have at most
    stop_ids: frozenset[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: Literal["stop", "length", ""] = ""

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng([self.request.seed, self.index])  # its own: company does not matter
        self._texts = [one for one in self.request.stop if isinstance(one, str)]
        self._tail = max((len(text.encode()) for text in self._texts), default=0) + 4  # tokens; each has a byte or more

    def uniform(self) -> float:
        return float(self._rng.random())

    def add(self, token: int, logprob: float, spell: Spell) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids or (self._texts and self._spelt(spell)):
            self.reason = "stop"
        elif len(self.ids) >= self.room:
            self.reason = "length"

    def sampled(self) -> Sampled:
        return Sampled(np.array(self.ids, np.int64), np.array(self.logprobs, np.float32), self.reason or "length")

    def _spelt(self, spell: Spell) -> bool:
        text = spell(self.ids[-self._tail :])
        return any(stop in text for stop in self._texts)


def draw(logits: torch.Tensor, rows: Sequence[Row], high: torch.dtype) -> tuple[list[int], list[float]]:
    """(R, V) logits to a token for each row and its log-probability, nats, before top-k and top-p cut anything off."""
    heats = [row.request.temperature or 1.0 for row in rows]
    if set(heats) != {1.0}:
        logits = logits.to(high) / torch.tensor(heats, dtype=high, device=logits.device)[:, None]
    logprobs = torch.log_softmax(logits, -1, dtype=high)
    tokens = logprobs.argmax(-1)
    random = [place for place, row in enumerate(rows) if row.request.temperature > 0 and row.request.top_k != 1]
    for cut in (False, True):
        places = [place for place in random if _cuts(rows[place].request) == cut]
        if places:
            where = torch.tensor(places, device=logits.device)
            numbers = torch.tensor([[rows[place].uniform()] for place in places], dtype=torch.float64).to(logits.device)
            chances = logprobs[where].exp_().double()
            pick = _pick_cut(chances, [rows[p].request for p in places], numbers) if cut else _pick(chances, numbers)
            tokens[where] = pick
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist()


def _cuts(request: Sampling) -> bool:
    return request.top_p < 1 or request.top_k > 0


def _pick(chances: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """(R, V) chances, not necessarily of sum 1, and (R, 1) uniform numbers to (R,) places: the inverse of the sum."""
    summed = chances.cumsum(-1)
    found = torch.searchsorted(summed, numbers * summed[:, -1:], right=True)[:, 0]
    last = (chances > 0).to(torch.int8).mul_(2).cumsum(-1, dtype=torch.int64).argmax(-1)  # rounding may lead past it
    return torch.minimum(found, last)


def _pick_cut(chances: torch.Tensor, requests: Sequence[Sampling], numbers: torch.Tensor) -> torch.Tensor:
    """Top-k, then top-p of what is left (Holtzman et al., 2020, arXiv:1904.09751); ties go to the lower id."""
    ranked, order = chances.sort(stable=True, dim=-1, descending=True)
    for row, request in zip(ranked, requests, strict=True):
        if request.top_k:
            row[request.top_k :] = 0
    ranked /= ranked.sum(-1, keepdim=True)
    limits = torch.tensor([[request.top_p] for request in requests], dtype=ranked.dtype, device=ranked.device)
    ranked[(ranked.cumsum(-1) - ranked >= limits) & (limits < 1)] = 0  # the token that reaches top_p stays
    found: torch.Tensor = order.gather(1, _pick(ranked, numbers)[:, None])[:, 0]
    return found

"""The next token of each of some rows, and where a completion ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from adapters.peft.sampling.requests import Sampling
from kitchen.errors import RunFailed
from kitchen.types import Sampled, Tokens

Spell = Callable[[Sequence[int]], str]
# tokens whose chances are added up first, so that a sum from token to token is needed in one block
# alone
BLOCK = 256
# tokens among which top-k and top-p are tried first, for sorting the whole vocabulary takes long
LIKELIEST = 256


@dataclass(eq=False)
class Row:
    """One completion as it is written."""

    request: Sampling
    index: int  # among the completions of its request
    room: int  # tokens that it may have at most
    stop_ids: frozenset[int]
    goes_on: bool = False  # from what the sampler has written before
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: Literal["stop", "length", ""] = ""

    def __post_init__(self) -> None:
        # its own: company does not matter
        self._rng = np.random.default_rng([self.request.seed, self.index])
        self._texts = [one for one in self.request.stop if isinstance(one, str)]
        # tokens; each has a byte or more
        self._tail = max((len(text.encode()) for text in self._texts), default=0) + 4

    def uniform(self) -> float:
        return float(self._rng.random())

    def add(self, token: int, logprob: float, spell: Spell) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids or (self._texts and self._spelt(spell)):
            self.reason = "stop"
        elif len(self.ids) >= self.room:
            self.reason = "length"

    def said(self) -> Tokens:
        """What has been read of it and its prompt: the last token has not."""
        return np.concatenate(
            [np.asarray(self.request.prompt, np.int64), np.array(self.ids[:-1], np.int64)]
        )

    def sampled(self) -> Sampled:
        return Sampled(
            np.array(self.ids, np.int64),
            np.array(self.logprobs, np.float32),
            self.reason or "length",
        )

    def _spelt(self, spell: Spell) -> bool:
        text = spell(self.ids[-self._tail :])
        return any(stop in text for stop in self._texts)


def draw(
    logits: torch.Tensor, rows: Sequence[Row], high: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """(R, V) logits to (R,) tokens and their log-probabilities, nats, before top-k and top-p cut
    anything off.
    """
    heats = [row.request.temperature or 1.0 for row in rows]
    logits = logits.to(high)
    below = logits - logits.amax(-1, keepdim=True)  # so that no temperature makes them overflow
    if set(heats) != {1.0}:
        below /= torch.tensor(heats, dtype=high, device=logits.device).clamp_(
            min=torch.finfo(high).tiny
        )[:, None]
    chances = _chances(below)
    sums = chances.sum(-1, dtype=torch.float64)  # (R, blocks)
    if not bool(sums.isfinite().all()):
        raise RunFailed(
            "the model gives logits that are no numbers: its weights are not finite; sample from "
            "others"
        )
    tokens = _tokens(below, chances, sums, rows)
    return tokens, (below.gather(1, tokens[:, None]) - sums.sum(-1, keepdim=True).log())[:, 0]


def _chances(below: torch.Tensor) -> torch.Tensor:
    """(R, V) to (R, blocks, BLOCK), the likeliest 1; what pads the last block has chance 0."""
    rows, vocabulary = below.shape
    found = below.new_zeros(rows, -(-vocabulary // BLOCK) * BLOCK)
    torch.exp(below, out=found[:, :vocabulary])
    return found.view(rows, -1, BLOCK)


def _tokens(
    logits: torch.Tensor, chances: torch.Tensor, sums: torch.Tensor, rows: Sequence[Row]
) -> torch.Tensor:
    """(R,) of each row as its request says."""
    kinds: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        kinds.setdefault(_kind(row.request), []).append(place)
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    for kind, places in kinds.items():
        where = (
            torch.tensor(places, device=logits.device) if len(places) < len(rows) else slice(None)
        )
        if kind == "likeliest":
            tokens[where] = logits[where].argmax(-1)
            continue
        numbers = torch.tensor(
            [[rows[place].uniform()] for place in places], dtype=torch.float64
        ).to(logits.device)
        if kind == "all":
            tokens[where] = _pick(chances[where], sums[where], numbers)
        else:
            mine = chances[where].flatten(1)[:, : logits.shape[1]]
            tokens[where] = _pick_cut(
                mine, sums[where].sum(-1), [rows[place].request for place in places], numbers
            )
    return tokens


def _kind(request: Sampling) -> Literal["likeliest", "cut", "all"]:
    if request.temperature == 0 or request.top_k == 1:
        return "likeliest"
    return "cut" if request.top_p < 1 or request.top_k > 0 else "all"


def _pick(chances: torch.Tensor, sums: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """(R, blocks, n) chances, their (R, blocks) sums and (R, 1) uniform numbers to (R,) places: the
    sum's inverse.
    """
    ends = sums.cumsum(-1)
    wanted = numbers * ends[:, -1:]
    block = torch.searchsorted(ends, wanted, right=True).clamp_(max=sums.shape[1] - 1)  # (R, 1)
    within = torch.take_along_dim(chances, block[..., None], 1)[:, 0].cumsum(
        -1, dtype=torch.float64
    )
    wanted -= (ends - sums).gather(1, block)
    last = (within < within[:, -1:]).sum(-1)  # of a chance above 0: rounding may lead past it
    return block[:, 0] * chances.shape[2] + torch.minimum(
        torch.searchsorted(within, wanted, right=True)[:, 0], last
    )


def _pick_cut(
    chances: torch.Tensor, totals: torch.Tensor, requests: Sequence[Sampling], numbers: torch.Tensor
) -> torch.Tensor:
    """(R, V) chances with their (R,) totals; all are ranked only where the likeliest do not settle
    the cut.
    """
    some = min(chances.shape[1], max(LIKELIEST, 1 + max(request.top_k for request in requests)))
    tokens, sure = _ranked(chances, totals, requests, numbers, some)
    open_ = [
        place
        for place, settled in enumerate(sure.tolist())
        if not settled and some < chances.shape[1]
    ]
    if open_:
        where = torch.tensor(open_, device=chances.device)
        rest = [requests[place] for place in open_]
        tokens[where] = _ranked(
            chances[where], totals[where], rest, numbers[where], chances.shape[1]
        )[0]
    return tokens


def _ranked(
    chances: torch.Tensor,
    totals: torch.Tensor,
    requests: Sequence[Sampling],
    numbers: torch.Tensor,
    some: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Top-k, then top-p of what is left (Holtzman et al., 2020, arXiv:1904.09751); ties go to the
    lower id.

    Returns (R,) tokens, and whether the `some` likeliest, which are all that is looked at, held all
    that is left.
    """
    ids = chances.topk(some, sorted=False).indices.sort(-1).values
    ranked, order = chances.gather(1, ids).double().sort(dim=-1, descending=True, stable=True)
    limits = torch.tensor(
        [[request.top_p] for request in requests], dtype=torch.float64, device=chances.device
    )
    size = chances.shape[1]
    ranks = torch.tensor(
        [[min(request.top_k or size, size)] for request in requests], device=chances.device
    )
    left = torch.arange(some, device=chances.device) < ranks
    shares = ranked * left
    shares /= torch.where(ranks < size, shares.sum(-1, keepdim=True), totals[:, None])
    # the token that reaches top_p stays
    left &= (shares.cumsum(-1) - shares < limits) | (limits == 1)
    sure = ~(left & (ranked == ranked[:, -1:]) & (ranked > 0)).any(-1)
    shares *= left
    found = _pick(shares[:, None], shares.sum(-1, keepdim=True), numbers)
    return ids.gather(1, order.gather(1, found[:, None]))[:, 0], sure

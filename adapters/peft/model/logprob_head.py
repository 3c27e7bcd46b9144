"""Log-probabilities from hidden states, and the gradient back, never with logits for all positions
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from adapters.peft.batching.micro_batch import MicroBatch
from adapters.peft.model.linear import dense, to
from adapters.peft.runtime.cpu import multiplied_in
from kitchen.types import Array

ROWS = 256  # positions whose logits exist at the same time
# numbers that torch adds by index with one thread, on a CPU; several add in no order
IN_ORDER = 2**15 - 1
# positions and their (s, K) log-probabilities to (s, K) dloss/dlogprob
Slope = Callable[[slice, Array], Array]


@dataclass(frozen=True)
class Scored:
    """Log-probabilities, and with slopes the gradients by the states and by the head's own trained
    weights.
    """

    logprobs: Array  # (S, K) nats
    states: torch.Tensor | None = None  # (U, H)
    head: tuple[torch.Tensor, ...] = ()


def score(
    head: nn.Module,
    hidden: torch.Tensor,
    batch: MicroBatch,
    high: torch.dtype,
    slope: Slope | None = None,
) -> Scored:
    """(U, H) states to log-probabilities of the targets, and the gradient back where there is a
    slope.

    dloss/dlogits = sum over targets of dloss/dlogprob times (onehot - softmax). Logits are computed
    once for each state, however many targets it has.
    """
    logprobs = np.empty(
        tuple(batch.targets.shape), np.float64 if high == torch.float64 else np.float32
    )
    gradient = torch.empty_like(hidden) if slope else None
    trained, to_logits = trained_of(head), _multiplied(head, hidden)
    sums = [torch.zeros_like(parameter) for parameter in trained] if slope else []
    edges = torch.searchsorted(
        batch.row, torch.arange(0, len(hidden) + ROWS, ROWS, device=hidden.device)
    ).tolist()
    for start, (first, last) in zip(range(0, len(hidden), ROWS), pairwise(edges), strict=False):
        rows, scored = slice(start, start + ROWS), slice(first, last)
        piece = hidden[rows].detach().requires_grad_(slope is not None)
        with torch.set_grad_enabled(slope is not None):
            logits = to_logits(piece)
        with torch.no_grad():
            likely = torch.softmax(logits, -1, dtype=high)
            places, targets = (batch.row[scored] - start)[:, None], batch.targets[scored]
            logprobs[scored] = _logprobs(logits, likely, places, targets, high).cpu().numpy()
        if slope is not None and gradient is not None:
            given = slope(scored, logprobs[scored])
            # in an order, on any device
            total = np.bincount(places[:, 0].cpu().numpy(), given.sum(1), len(piece))
            slopes = torch.from_numpy(given).to(likely)
            pushed = likely.mul_(-torch.from_numpy(total).to(likely)[:, None])
            add_in_order(pushed, places, targets, slopes)
            gradient[rows], *found = torch.autograd.grad(
                logits, [piece, *trained], pushed.to(logits.dtype)
            )
            sums = [total + part for total, part in zip(sums, found, strict=True)]
    return Scored(logprobs, gradient, tuple(sums))


def add_in_order(
    pushed: torch.Tensor, places: torch.Tensor, targets: torch.Tensor, slopes: torch.Tensor
) -> None:
    """(s, K) slopes where (s, 1) places and (s, K) targets say, in their order: else the bits are
    left to threads.
    """
    some = max(1, IN_ORDER // targets.shape[1])
    for at in range(0, len(targets), some):
        part = slice(at, at + some)
        where = places[part].expand_as(targets[part]), targets[part]
        pushed.index_put_(where, slopes[part], accumulate=True)


def _multiplied(head: nn.Module, hidden: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The head as it is, or if it is not trained the fastest product with its weights, cast once
    for (U, H) states.

    Lanes share the head, so nothing is ever put into it.
    """
    if type(head) is not nn.Linear or head.weight.requires_grad:
        return head
    wide, apply = multiplied_in(hidden), cast(Callable[..., torch.Tensor], _Frozen.apply)
    weight, bias = head.weight.to(wide), to(head.bias, wide)
    return lambda states: apply(states.to(wide), weight, bias)


class _Frozen(torch.autograd.Function):
    """(S, H) states to (S, V) logits, and the gradient by the states alone."""

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.weight = weight
        return dense(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return dense(gradients[0], ctx.weight.t()), None, None


def trained_of(head: nn.Module) -> list[nn.Parameter]:
    """What of it is in training."""
    return [parameter for parameter in head.parameters() if parameter.requires_grad]


def _logprobs(
    logits: torch.Tensor,
    likely: torch.Tensor,
    places: torch.Tensor,
    targets: torch.Tensor,
    high: torch.dtype,
) -> torch.Tensor:
    """(S, K) nats, by the likeliest token's logit and probability; a target's own may be too small
    for a logarithm.
    """
    top, token = logits.max(-1, keepdim=True)
    normaliser = top.to(high) - likely.gather(1, token).log()
    return logits[places, targets].to(high) - normaliser[places[:, 0]]


def likeliest(
    head: nn.Module, hidden: torch.Tensor, k: int, high: torch.dtype
) -> tuple[Array, Array]:
    """(S, H) states to (S, k) ids and (S, k) nats, the likeliest first."""
    ids, values = np.empty((len(hidden), k), np.int64), np.empty((len(hidden), k), np.float32)
    to_logits = _multiplied(head, hidden)
    for start in range(0, len(hidden), ROWS):
        rows = slice(start, start + ROWS)
        found = torch.log_softmax(to_logits(hidden[rows]), -1, dtype=high).topk(k, -1)
        ids[rows], values[rows] = found.indices.cpu().numpy(), found.values.cpu().numpy()
    return ids, values

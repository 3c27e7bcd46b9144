"""Log-probabilities from hidden states, and their gradient, in chunks of positions.

Logits never exist for all positions at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import nn

from adapters.peft.batching.micro_batch import MicroBatch
from adapters.peft.model.linear import cast_optional, linear
from adapters.peft.model.logit_change import ChangedHead, change_logits
from adapters.peft.runtime.cpu import matmul_dtype
from kitchen.types import Array

CHUNK_ROWS = 256  # positions whose logits exist at the same time
# Numbers that torch adds by index with one thread on a CPU; above this limit several threads add
# in no fixed order.
MAX_SERIAL_INDEX_ADD = 2**15 - 1
# d loss / d logprob per position: scored positions and their (s, K) nats to (s, K)
LogprobGradFn = Callable[[slice, Array], Array]
LogitsFn = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class HeadOutput:
    """Log-probabilities; if computed, gradients w.r.t. states and trainable head weights."""

    logprobs: Array  # (S, K) nats
    dstates: torch.Tensor | None = None  # (U, H)
    dhead: tuple[torch.Tensor, ...] = ()


class ScoreFn(Protocol):
    """A function with the signature of `score`."""

    def __call__(
        self,
        head: nn.Module,
        states: torch.Tensor,
        batch: MicroBatch,
        accum_dtype: torch.dtype,
        grad_fn: LogprobGradFn | None = None,
    ) -> HeadOutput: ...


def score(
    head: nn.Module,
    states: torch.Tensor,
    batch: MicroBatch,
    accum_dtype: torch.dtype,
    grad_fn: LogprobGradFn | None = None,
) -> HeadOutput:
    """Return the targets' log-probabilities from (U, H) states, and gradients with a `grad_fn`.

    d loss / d logits = sum over targets of d loss / d logprob times (onehot - softmax). Logits are
    computed once for each state, however many targets it has.
    """
    logprobs = np.empty(
        tuple(batch.targets.shape), np.float64 if accum_dtype == torch.float64 else np.float32
    )
    dstates = torch.empty_like(states) if grad_fn else None
    parameters, to_logits = trainable_parameters(head), _logits_fn(head, states)
    dhead = [torch.zeros_like(p, dtype=accum_dtype) for p in parameters] if grad_fn else []
    target_rows = batch.target_rows.cpu().numpy()
    for rows, scored in scored_chunks(target_rows, len(states), CHUNK_ROWS):
        chunk = states[rows].detach().requires_grad_(grad_fn is not None)
        with torch.set_grad_enabled(grad_fn is not None):
            logits = to_logits(chunk)
        indices, targets = (batch.target_rows[scored] - rows.start)[:, None], batch.targets[scored]
        with torch.no_grad():
            probs = torch.softmax(logits, -1, dtype=accum_dtype)
            values = _target_logprobs(logits, probs, indices, targets)
            logprobs[scored] = values.cpu().numpy()
        if grad_fn is not None and dstates is not None:
            dlogits = _logit_gradient(probs, indices, targets, grad_fn(scored, logprobs[scored]))
            dstates[rows], *dparts = torch.autograd.grad(
                logits, [chunk, *parameters], dlogits.to(logits.dtype)
            )
            for total, part in zip(dhead, dparts, strict=True):
                total.add_(part)
    return HeadOutput(logprobs, dstates, tuple(dhead))


def top_logprobs(
    head: nn.Module, states: torch.Tensor, k: int, accum_dtype: torch.dtype
) -> tuple[Array, Array]:
    """(S, H) states to (S, k) ids and (S, k) nats, the most likely first."""
    ids, values = np.empty((len(states), k), np.int64), np.empty((len(states), k), np.float32)
    to_logits = _logits_fn(head, states)
    for start in range(0, len(states), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        top = torch.log_softmax(to_logits(states[rows]), -1, dtype=accum_dtype).topk(k, -1)
        ids[rows], values[rows] = top.indices.cpu().numpy(), top.values.cpu().numpy()
    return ids, values


def add_in_order(
    dlogits: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor, grads: torch.Tensor
) -> None:
    """Add (s, K) gradients at (s, 1) rows and (s, K) targets of (n, V), in a fixed order.

    Otherwise the last bits would depend on the timing of threads.
    """
    step = max(1, MAX_SERIAL_INDEX_ADD // targets.shape[1])
    for start in range(0, len(targets), step):
        part = slice(start, start + step)
        where = rows[part].expand_as(targets[part]), targets[part]
        dlogits.index_put_(where, grads[part], accumulate=True)


def trainable_parameters(head: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a head that are in training."""
    return [parameter for parameter in head.parameters() if parameter.requires_grad]


def scored_chunks(target_rows: Array, count: int, size: int) -> list[tuple[slice, slice]]:
    """Return chunks of `count` states, and the scored positions that belong to each."""
    edges = np.searchsorted(target_rows, np.arange(0, count + size, size)).tolist()
    rows = [slice(start, start + size) for start in range(0, count, size)]
    scored = [slice(first, last) for first, last in pairwise(edges)]
    return list(zip(rows, scored, strict=False))


def _target_logprobs(
    logits: torch.Tensor, probs: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """(s, K) nats, normalised by the most likely token's logit and probability.

    A target's own probability may be too small for a logarithm.
    """
    top, token = logits.max(-1, keepdim=True)
    normaliser = top.to(probs.dtype) - probs.gather(1, token).log()
    return logits[rows, targets].to(probs.dtype) - normaliser[rows[:, 0]]


def _logit_gradient(
    probs: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor, grads: Array
) -> torch.Tensor:
    """Return d loss / d logits (n, V) from (s, K) d loss / d logprob; overwrites `probs`."""
    # numpy adds in a fixed order, on any device
    totals = np.bincount(rows[:, 0].cpu().numpy(), grads.sum(1), len(probs))
    on_device = torch.from_numpy(grads).to(probs)
    dlogits = probs.mul_(-torch.from_numpy(totals).to(probs)[:, None])
    add_in_order(dlogits, rows, targets, on_device)
    return dlogits


def _logits_fn(head: nn.Module, states: torch.Tensor) -> LogitsFn:
    """Return the head; if it is not trained, the fastest product with its weights, cast once.

    Lanes share the head, so nothing is stored in it.
    """
    if isinstance(head, ChangedHead):
        unchanged, changes = _logits_fn(head.base, states), head.changes
        return lambda chunk: change_logits(unchanged(chunk), changes)
    if type(head) is not nn.Linear or head.weight.requires_grad:
        return head
    wide, apply = matmul_dtype(states), cast(Callable[..., torch.Tensor], _FrozenHead.apply)
    weight, bias = head.weight.to(wide), cast_optional(head.bias, wide)
    return lambda chunk: apply(chunk.to(wide), weight, bias)


class _FrozenHead(torch.autograd.Function):
    """(S, H) states to (S, V) logits, with a gradient w.r.t. the states only."""

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.weight = weight
        return linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return linear(gradients[0], ctx.weight.t()), None, None

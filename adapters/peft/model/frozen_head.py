"""Log-probabilities and their gradient for an output layer that is not trained, on a GPU.

The logits of a chunk are stored once, in the dtype of the model, and overwritten by their gradient.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from adapters.peft.batching.micro_batch import MicroBatch
from adapters.peft.model.linear import is_low_precision
from adapters.peft.model.logprob_head import (
    HeadOutput,
    LogprobGradFn,
    ScoreFn,
    score,
    scored_chunks,
)
from kitchen.types import Array

CHUNK_ROWS = 1024  # positions whose logits exist at the same time


class LogitKernels(Protocol):
    """Kernels over whole rows of logits."""

    def logsumexp(self, logits: torch.Tensor) -> torch.Tensor:
        """(n, V) to (n,), in float32 or better."""
        ...

    def softmax_gradient_(
        self, logits: torch.Tensor, lse: torch.Tensor, totals: torch.Tensor
    ) -> None:
        """Replace (n, V) logits by -totals · softmax(logits), given their log-sum-exps."""
        ...


class FrozenHeadScore:
    """`score` for a plain linear head that is not trained."""

    def __init__(self, kernels: LogitKernels, chunk_rows: int = CHUNK_ROWS) -> None:
        self._kernels, self._chunk_rows = kernels, chunk_rows

    def __call__(
        self,
        head: nn.Module,
        states: torch.Tensor,
        batch: MicroBatch,
        accum_dtype: torch.dtype,
        grad_fn: LogprobGradFn | None = None,
    ) -> HeadOutput:
        """Return the targets' log-probabilities from (U, H) states; with a `grad_fn`, gradients."""
        linear: Any = head
        dtype = np.float64 if accum_dtype == torch.float64 else np.float32
        logprobs = np.empty(tuple(batch.targets.shape), dtype)
        dstates = torch.empty_like(states) if grad_fn else None
        target_rows = batch.target_rows.cpu().numpy()
        for rows, scored in scored_chunks(target_rows, len(states), self._chunk_rows):
            logits = nn.functional.linear(states[rows], linear.weight, linear.bias)
            lse = self._kernels.logsumexp(logits)
            index = (batch.target_rows[scored] - rows.start)[:, None]
            targets = batch.targets[scored]
            values = logits[index, targets].to(accum_dtype) - lse[index]
            logprobs[scored] = values.cpu().numpy()
            if grad_fn is not None and dstates is not None:
                grads = grad_fn(scored, logprobs[scored])
                at = target_rows[scored] - rows.start
                self._overwrite(logits, lse, values, grads, at, index, targets)
                torch.mm(logits, linear.weight, out=dstates[rows])
        return HeadOutput(logprobs, dstates)

    def _overwrite(
        self,
        logits: torch.Tensor,
        lse: torch.Tensor,
        values: torch.Tensor,
        grads: Array,
        rows: Array,
        index: torch.Tensor,
        targets: torch.Tensor,
    ) -> None:
        """Replace (n, V) logits by d loss / d logits, given (s, K) d loss / d logprob.

        That is the sum over targets of d loss / d logprob times (onehot - softmax). Entries of
        targets are computed before they are rounded, and equal ones get the same value.
        """
        totals = torch.from_numpy(np.bincount(rows, grads.sum(1), len(logits))).to(lse)
        sums = torch.from_numpy(sum_equal_targets(rows, targets, grads)).to(values)
        of_targets = sums - totals[index] * values.exp()
        self._kernels.softmax_gradient_(logits, lse, totals)
        logits[index, targets] = of_targets.to(logits.dtype)


def sum_equal_targets(rows: Array, targets: torch.Tensor, grads: Array) -> Array:
    """Return (s, K) sums of the gradients with the same row and target, in a fixed order."""
    if targets.shape[1] == 1 and bool((np.diff(rows) > 0).all()):
        return grads  # each row has one target
    ids = targets.cpu().numpy()
    keys = rows[:, None].astype(np.int64) * (int(ids.max(initial=0)) + 1) + ids
    _, inverse = np.unique(keys, return_inverse=True)
    inverse = inverse.reshape(-1)
    return np.bincount(inverse, grads.reshape(-1))[inverse].reshape(grads.shape)


def choose_score(head: nn.Module) -> ScoreFn:
    """Return how the log-probabilities of a head are computed: as is best for its device."""
    weight: Any = getattr(head, "weight", None)
    if type(head) is not nn.Linear or weight.requires_grad or weight.device.type != "cuda":
        return score
    if not is_low_precision(weight.dtype) or find_spec("triton") is None:
        return score
    from adapters.peft.model.triton_logits import TritonLogitKernels

    return FrozenHeadScore(TritonLogitKernels())

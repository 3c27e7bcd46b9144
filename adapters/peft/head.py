"""Log-probabilities from hidden states, and the gradient back, never with logits for all positions at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from kitchen.types import Array

ROWS = 256  # positions whose logits exist at the same time
Slope = Callable[[slice, Array], Array]  # positions and their (s, K) log-probabilities to (s, K) dloss/dlogprob


def score(
    head: nn.Module, hidden: torch.Tensor, targets: torch.Tensor, high: torch.dtype, slope: Slope | None = None
) -> Array:
    """(S, H) states and (S, K) ids to (S, K) nats; with `slope`, the gradient goes on into `hidden`.

    dloss/dlogits = sum over targets of dloss/dlogprob times (onehot - softmax).
    """
    logprobs = np.empty(tuple(targets.shape), np.float64 if high == torch.float64 else np.float32)
    gradient = torch.empty_like(hidden) if slope else None
    for start in range(0, len(hidden), ROWS):
        rows = slice(start, start + ROWS)
        piece = hidden[rows].detach().requires_grad_(slope is not None)
        with torch.set_grad_enabled(slope is not None):
            logits = head(piece)
        with torch.no_grad():
            everywhere = torch.log_softmax(logits, -1, dtype=high)
            logprobs[rows] = everywhere.gather(1, targets[rows]).cpu().numpy()
        if slope is not None and gradient is not None:
            slopes = torch.from_numpy(slope(rows, logprobs[rows])).to(everywhere)
            pushed = everywhere.exp_().mul_(-slopes.sum(1, keepdim=True)).scatter_add_(1, targets[rows], slopes)
            torch.autograd.backward(logits, pushed.to(logits.dtype))
            assert piece.grad is not None
            gradient[rows] = piece.grad
    if gradient is not None and hidden.requires_grad:
        torch.autograd.backward(hidden, gradient)
    return logprobs


def likeliest(head: nn.Module, hidden: torch.Tensor, k: int, high: torch.dtype) -> tuple[Array, Array]:
    """(S, H) states to (S, k) ids and (S, k) nats, the likeliest first."""
    ids, values = np.empty((len(hidden), k), np.int64), np.empty((len(hidden), k), np.float32)
    for start in range(0, len(hidden), ROWS):
        rows = slice(start, start + ROWS)
        found = torch.log_softmax(head(hidden[rows]), -1, dtype=high).topk(k, -1)
        ids[rows], values[rows] = found.indices.cpu().numpy(), found.values.cpu().numpy()
    return ids, values

"""A custom loss, computed here between a forward and a backward pass of the server.

Both passes are of the cross-entropy, sum(-logprobs * weights): with the weights -d loss / d logprob
it has the gradient of the custom loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kitchen.backend.custom_loss import custom_loss_grads
from kitchen.types import Array, Datum, Loss


def linear_datum(datum: Datum, grads: Array) -> Datum:
    """Return a datum whose cross-entropy has these d loss / d logprob."""
    weights = (-grads).astype(np.float32)
    return Datum(datum.tokens, {"target_tokens": datum.targets, "weights": weights})


class CustomLoss:
    """The callback of the SDK's `forward_backward_custom`.

    It returns a tensor whose gradient with respect to the log-probabilities is the loss's.
    """

    def __init__(self, loss: Loss, data: Sequence[Datum]) -> None:
        self._loss = loss
        self._data = data
        self.metrics: Mapping[str, float] = {}  # filled by the call

    def __call__(self, _: Any, logprobs: Sequence[Any]) -> tuple[Any, dict[str, float]]:
        import torch

        arrays = [
            tensor.detach().numpy().reshape(np.shape(datum.targets))
            for tensor, datum in zip(logprobs, self._data, strict=True)
        ]
        self.metrics, grads = custom_loss_grads(self._loss, self._data, arrays)
        terms = [
            (tensor * torch.from_numpy(grad).to(tensor).reshape(tensor.shape)).sum()
            for tensor, grad in zip(logprobs, grads, strict=True)
        ]
        return torch.stack(terms).sum(), {}

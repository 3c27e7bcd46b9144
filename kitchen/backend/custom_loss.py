"""Custom losses: call one, mask its gradients, and refuse values that are not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kitchen.backend.losses import check_finite, like_targets, scored_positions
from kitchen.errors import ConfigError, Diverged
from kitchen.types import Array, Datum, Floats, Loss


def custom_loss_grads(
    loss: Loss,
    data: Sequence[Datum],
    logprobs: Sequence[Floats],
    indices: Sequence[int] = (),
    count: int = 0,
) -> tuple[Mapping[str, float], Sequence[Array]]:
    """Return the metrics of a custom loss and d loss / d logprob of each datum.

    The loss sees 0 at positions that it does not score, and its gradients there are dropped.
    If the datums are part of a batch of `count`, `indices` are their positions in it, which errors
    name.
    """
    indices = indices or range(len(data))
    count = count or len(data)
    masks = [
        like_targets(scored_positions(loss, datum), lp)
        for datum, lp in zip(data, logprobs, strict=True)
    ]
    visible = [
        np.where(mask, lp, np.zeros((), lp.dtype)) for mask, lp in zip(masks, logprobs, strict=True)
    ]
    value, grads, metrics = loss(data, visible)
    _check_shapes(grads, logprobs, indices)
    masked_grads = [
        np.where(mask, np.asarray(grad, np.float64), 0.0)
        for mask, grad in zip(masks, grads, strict=True)
    ]
    for index, grad in zip(indices, masked_grads, strict=True):
        check_finite(index, count, grad)
    if not np.isfinite(value):
        raise Diverged(
            f"the custom loss is {value} over datums {indices[0]} to {indices[-1]} of {count}"
        )
    return {"loss:sum": float(value), **metrics}, masked_grads


def _check_shapes(
    grads: Sequence[Floats], logprobs: Sequence[Floats], indices: Sequence[int]
) -> None:
    """Raise ConfigError if gradients do not match the log-probabilities in number or shape."""
    if len(grads) != len(logprobs):
        raise ConfigError(
            f"the custom loss returned {len(grads)} arrays of gradients for {len(logprobs)} datums"
        )
    for index, grad, lp in zip(indices, grads, logprobs, strict=True):
        if np.shape(grad) != lp.shape:
            raise ConfigError(
                f"the custom loss returned gradients of shape {np.shape(grad)} for datum {index}, "
                f"whose log-probabilities have shape {lp.shape}"
            )

"""A custom loss, and what no loss may give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kitchen.backend.losses import scored
from kitchen.errors import ConfigError, RunFailed
from kitchen.types import Array, Datum, Floats, Loss


def own_slopes(
    loss: Loss,
    data: Sequence[Datum],
    logprobs: Sequence[Floats],
    indices: Sequence[int] = (),
    count: int = 0,
) -> tuple[Mapping[str, float], Sequence[Array]]:
    """Metrics and slopes of a custom loss, which sees 0 where it does not score; slopes there
    count for nothing.

    `indices` are the datums' places in a batch of `count`, for errors, if they are not the whole
    batch.
    """
    indices, count = indices or range(len(data)), count or len(data)
    live = [
        np.broadcast_to(scored(loss, d).reshape(-1, *[1] * (lp.ndim - 1)), lp.shape)
        for d, lp in zip(data, logprobs, strict=True)
    ]
    seen = [
        np.where(mask, lp, np.zeros((), lp.dtype)) for mask, lp in zip(live, logprobs, strict=True)
    ]
    value, slopes, metrics = loss(data, seen)
    if len(slopes) != len(data):
        raise ConfigError(
            f"the custom loss gave {len(slopes)} arrays of slopes for {len(data)} datums"
        )
    masked = []
    for index, slope, lp, mask in zip(indices, slopes, logprobs, live, strict=True):
        if np.shape(slope) != lp.shape:
            raise ConfigError(
                f"the custom loss gave datum {index} slopes of shape {np.shape(slope)}, and "
                "its "
                f"log-probabilities have {lp.shape}"
            )
        masked.append(np.where(mask, np.asarray(slope, np.float64), 0.0))
        check_finite(index, count, masked[-1])
    if not np.isfinite(value):
        raise RunFailed(
            f"the custom loss is {value} over datums {indices[0]} to {indices[-1]} of {count}"
        )
    return {"loss:sum": float(value), **metrics}, masked


def check_finite(index: int, count: int, *arrays: Array) -> None:
    """Raises RunFailed that names the datum."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise RunFailed(
            f"datum {index} of {count}: its loss or the slope of it is not a finite number; "
            "nothing is "
            "stepped along. A smaller learning rate or a check of the data may mend it"
        )

"""A loss of one's own, and what no loss may give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kitchen.errors import ConfigError, RunFailed
from kitchen.losses import scored
from kitchen.types import Array, Datum, Floats, Loss


def own_slopes(
    loss: Loss, data: Sequence[Datum], logprobs: Sequence[Floats]
) -> tuple[Mapping[str, float], Sequence[Array]]:
    """A loss of one's own sees 0 where it does not score, and its slopes there count for nothing."""
    live = [np.broadcast_to(scored(loss, d).reshape(-1, *[1] * (lp.ndim - 1)), lp.shape)
            for d, lp in zip(data, logprobs, strict=True)]
    seen = [np.where(mask, lp, np.float32(0)) for mask, lp in zip(live, logprobs, strict=True)]
    value, slopes, metrics = loss(data, seen)
    for index, (slope, lp) in enumerate(zip(slopes, logprobs, strict=True)):
        if np.shape(slope) != lp.shape:
            raise ConfigError(f"the loss of one's own gave datum {index} slopes of shape {np.shape(slope)}, "
                              f"and its log-probabilities have {lp.shape}")
    masked = [np.where(mask, np.asarray(slope, np.float64), 0.0) for mask, slope in zip(live, slopes, strict=True)]
    return {"loss:sum": float(value), **metrics}, masked


def check_finite(total: float, logprobs: Sequence[Array], slopes: Sequence[Array]) -> None:
    for index, (lp, slope) in enumerate(zip(logprobs, slopes, strict=True)):
        if not np.isfinite(slope).all() or np.isnan(lp).any():
            raise RunFailed(f"datum {index} of {len(slopes)}: its loss or the slope of it is not a finite number; "
                            "nothing is stepped along. A smaller learning rate or a check of the data may mend it")
    if not np.isfinite(total):
        raise RunFailed(f"the loss is {total}")

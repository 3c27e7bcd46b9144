"""What losses say of scored positions: values and slopes, for named losses and for one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from adapters.peft.batches import MicroBatch
from kitchen.errors import ConfigError, RunFailed
from kitchen.losses import Options, scored, sloped
from kitchen.types import Array, Datum, Floats, Loss


class NamedSlopes:
    """Slopes of a named loss, piece by piece; adds its values up."""

    def __init__(self, data: Sequence[Datum], batch: MicroBatch, loss: str, options: Options | None) -> None:
        self._data, self._batch, self._loss, self._options = data, batch, loss, options
        self.total = 0.0

    def __call__(self, rows: slice, logprobs: Array) -> Array:
        """(s, K) nats to (s, K) dloss/dlogprob."""
        slopes = np.zeros(logprobs.shape)
        owner, position = self._batch.owner[rows], self._batch.position[rows]
        for row in np.unique(owner):
            index, mine = self._batch.indices[row], owner == row
            datum = _part(self._data[index], position[mine])
            shape = np.shape(datum.targets)
            width = shape[1] if len(shape) == 2 else 1
            value, slope = sloped(self._loss, self._options, datum, logprobs[mine, :width].reshape(shape))
            check_finite(index, len(self._data), value, slope)
            self.total += float(value.sum())
            slopes[mine, :width] = slope.reshape(-1, width)
        return slopes


class GivenSlopes:
    """Slopes that are known already, of the shape of each datum's targets."""

    def __init__(self, slopes: Mapping[int, Array], batch: MicroBatch) -> None:
        self._slopes, self._batch = slopes, batch

    def __call__(self, rows: slice, logprobs: Array) -> Array:
        slopes = np.zeros(logprobs.shape)
        owner, position = self._batch.owner[rows], self._batch.position[rows]
        for row in np.unique(owner):
            mine = owner == row
            given = self._slopes[self._batch.indices[row]][position[mine]].reshape(int(mine.sum()), -1)
            slopes[mine, : given.shape[1]] = given
        return slopes


def own_slopes(
    loss: Loss, data: Sequence[Datum], logprobs: Sequence[Floats], indices: Sequence[int], count: int
) -> tuple[Mapping[str, float], Sequence[Array]]:
    """Metrics and slopes of a loss of one's own, which sees 0 where it does not score; slopes there count for nothing.

    `indices` are the datums' places in a batch of `count`, for errors.
    """
    live = [np.broadcast_to(scored(loss, d).reshape(-1, *[1] * (lp.ndim - 1)), lp.shape)
            for d, lp in zip(data, logprobs, strict=True)]
    seen = [np.where(mask, lp, np.zeros((), lp.dtype)) for mask, lp in zip(live, logprobs, strict=True)]
    value, slopes, metrics = loss(data, seen)
    if len(slopes) != len(data):
        raise ConfigError(f"the loss of one's own gave {len(slopes)} arrays of slopes for {len(data)} datums")
    masked = []
    for index, slope, lp, mask in zip(indices, slopes, logprobs, live, strict=True):
        if np.shape(slope) != lp.shape:
            raise ConfigError(f"the loss of one's own gave datum {index} slopes of shape {np.shape(slope)}, and its "
                              f"log-probabilities have {lp.shape}")
        masked.append(np.where(mask, np.asarray(slope, np.float64), 0.0))
        check_finite(index, count, masked[-1])
    if not np.isfinite(value):
        raise RunFailed(f"the loss of one's own is {value} over datums {indices[0]} to {indices[-1]} of {count}")
    return {"loss:sum": float(value), **metrics}, masked


def check_finite(index: int, count: int, *arrays: Array) -> None:
    """Raises RunFailed that names the datum."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise RunFailed(f"datum {index} of {count}: its loss or the slope of it is not a finite number; nothing is "
                        "stepped along. A smaller learning rate or a check of the data may mend it")


def combined(parts: Sequence[tuple[int, Mapping[str, float]]]) -> Mapping[str, float]:
    """Metrics of several calls with so many datums each, joined as the ends of their keys say."""
    joined: dict[str, float] = {}
    for key in dict.fromkeys(key for _, metrics in parts for key in metrics):
        found = [(count, metrics[key]) for count, metrics in parts if key in metrics]
        numbers = [number for _, number in found]
        if key.endswith(":sum"):
            joined[key] = float(sum(numbers))
        elif key.endswith((":min", ":max")):
            joined[key] = float(min(numbers) if key.endswith(":min") else max(numbers))
        else:
            joined[key] = float(sum(count * number for count, number in found) / sum(count for count, _ in found))
    return joined


def _part(datum: Datum, places: Array) -> Datum:
    """Some positions of a datum; named losses are sums over positions."""
    inputs = {name: np.asarray(values)[places] for name, values in datum.loss_inputs.items()}
    return Datum(np.asarray(datum.tokens)[places], inputs)

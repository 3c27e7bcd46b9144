"""What losses say of scored positions: values and slopes, for named losses and for one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from adapters.peft.batching.micro_batch import MicroBatch
from kitchen.backend.custom_loss import check_finite
from kitchen.backend.losses import Options, value_and_grad
from kitchen.types import Array, Datum


class NamedSlopes:
    """Slopes of a named loss, piece by piece; adds its values up."""

    def __init__(
        self, data: Sequence[Datum], batch: MicroBatch, loss: str, options: Options | None
    ) -> None:
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
            value, slope = value_and_grad(
                self._loss, self._options, datum, logprobs[mine, :width].reshape(shape)
            )
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
            given = self._slopes[self._batch.indices[row]][position[mine]].reshape(
                int(mine.sum()), -1
            )
            slopes[mine, : given.shape[1]] = given
        return slopes


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
            joined[key] = float(
                sum(count * number for count, number in found) / sum(count for count, _ in found)
            )
    return joined


def _part(datum: Datum, places: Array) -> Datum:
    """Some positions of a datum; named losses are sums over positions."""
    inputs = {name: np.asarray(values)[places] for name, values in datum.loss_inputs.items()}
    return Datum(np.asarray(datum.tokens)[places], inputs)

"""d loss / d logprob of scored positions, and combined metrics of micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from adapters.peft.batching.micro_batch import MicroBatch
from kitchen.backend.losses import Options, check_finite, value_and_logprob_grads
from kitchen.types import Array, Datum


class NamedLossGrads:
    """d loss / d logprob of a named loss, chunk by chunk; adds up the values of the loss."""

    def __init__(
        self, data: Sequence[Datum], batch: MicroBatch, loss: str, options: Options | None
    ) -> None:
        self._data, self._batch, self._loss, self._options = data, batch, loss, options
        self.total = 0.0  # of the loss

    def __call__(self, rows: slice, logprobs: Array) -> Array:
        """(s, K) nats of the scored positions `rows` to (s, K) d loss / d logprob."""
        grads = np.zeros(logprobs.shape)
        owners, positions = self._batch.owners[rows], self._batch.positions[rows]
        for row in np.unique(owners):
            index, owned = self._batch.indices[row], owners == row
            datum = _select_positions(self._data[index], positions[owned])
            shape = np.shape(datum.targets)
            width = shape[1] if len(shape) == 2 else 1
            of_datum = logprobs[owned, :width].reshape(shape)
            value, grad = value_and_logprob_grads(self._loss, self._options, datum, of_datum)
            check_finite(index, len(self._data), value, grad)
            self.total += float(value.sum())
            grads[owned, :width] = grad.reshape(-1, width)
        return grads


class PrecomputedGrads:
    """d loss / d logprob that is already known, in the shape of each datum's targets."""

    def __init__(self, grads: Mapping[int, Array], batch: MicroBatch) -> None:
        """`grads`: by the index of each datum."""
        self._grads, self._batch = grads, batch

    def __call__(self, rows: slice, logprobs: Array) -> Array:
        """(s, K) nats of the scored positions `rows` to (s, K) d loss / d logprob."""
        grads = np.zeros(logprobs.shape)
        owners, positions = self._batch.owners[rows], self._batch.positions[rows]
        for row in np.unique(owners):
            owned = owners == row
            of_datum = self._grads[self._batch.indices[row]][positions[owned]]
            of_datum = of_datum.reshape(int(owned.sum()), -1)
            grads[owned, : of_datum.shape[1]] = of_datum
        return grads


def combine_metrics(parts: Sequence[tuple[int, Mapping[str, float]]]) -> Mapping[str, float]:
    """Combine metrics of several calls, each with its number of datums, by the suffix of the key.

    `:sum`, `:min` and `:max` are sums, minima and maxima; all others are means over datums.
    """
    combined: dict[str, float] = {}
    for key in dict.fromkeys(chain.from_iterable(metrics for _, metrics in parts)):
        counts = [count for count, metrics in parts if key in metrics]
        values = [metrics[key] for _, metrics in parts if key in metrics]
        if key.endswith(":sum"):
            combined[key] = float(sum(values))
        elif key.endswith(":min"):
            combined[key] = float(min(values))
        elif key.endswith(":max"):
            combined[key] = float(max(values))
        else:
            weighted = sum(count * value for count, value in zip(counts, values, strict=True))
            combined[key] = float(weighted / sum(counts))
    return combined


def _select_positions(datum: Datum, positions: Array) -> Datum:
    """Select positions of a datum; named losses are sums over positions."""
    inputs = {name: np.asarray(values)[positions] for name, values in datum.loss_inputs.items()}
    return Datum(np.asarray(datum.tokens)[positions], inputs)

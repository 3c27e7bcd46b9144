"""Token ids of a request whose log-probabilities in the prompt are to be returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

from adapters.tinker_protobuf import MAX_NUMBERS, dense_of_csr
from kitchen.errors import DataError
from kitchen.types import Array

FIELD = "target_prompt_logprobs"
ABSENT = -1  # an id that requests nothing


@dataclass(frozen=True)
class Csr:
    """Row starts and columns of a sparse matrix in CSR format."""

    starts: Array
    columns: Array


@dataclass(frozen=True)
class TargetTokens:
    """The ids to score: row i of (T - 1, K) belongs to position i + 1 of the prompt."""

    ids: Array
    csr: Csr | None  # of a sparse request, whose answer has the same cells

    def message(self, logprobs: Array) -> Any:
        """Return (T - 1, K) log-probabilities as a tensor of the request's layout."""
        nats = np.where(self.ids == ABSENT, 0.0, logprobs).astype(np.float32)
        tensor = pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=self.ids.shape)
        if self.csr is None:
            tensor.dense = nats.tobytes()
            return tensor
        rows = np.repeat(np.arange(len(nats)), np.diff(self.csr.starts))
        tensor.sparse_csr.CopyFrom(
            pb.SparseCsr(
                values=nats[rows, self.csr.columns].tobytes(),
                crow_indices=self.csr.starts.tobytes(),
                col_indices=self.csr.columns.tobytes(),
            )
        )
        return tensor


def parse_targets(tensor: Any, prompt_length: int) -> TargetTokens | None:
    """Read the field of a request for a prompt of this length; raises DataError."""
    if tensor is None:
        return None
    shape = tuple(tensor.shape or ())
    if tensor.dtype != "int64" or len(shape) != 2 or shape[0] != prompt_length - 1:
        raise DataError(
            f"{FIELD} has the dtype {tensor.dtype} and the shape {shape}, and must be int64 of "
            f"shape ({prompt_length - 1}, K): a row for each token of the prompt but the first"
        )
    if shape[0] * shape[1] > MAX_NUMBERS:
        raise DataError(
            f"{FIELD} has {shape[0]} x {shape[1]} cells, more than this server scores "
            f"({MAX_NUMBERS:.0e})"
        )
    values = _integers(tensor.data)
    csr = None
    if tensor.sparse_crow_indices is None:
        if values.size != shape[0] * shape[1]:
            raise DataError(f"{FIELD} has {values.size} ids, which do not fit the shape {shape}")
        ids = values.reshape(shape)
    else:
        csr = Csr(_integers(tensor.sparse_crow_indices), _integers(tensor.sparse_col_indices or []))
        ids = dense_of_csr(values, csr.starts, csr.columns, shape, FIELD, absent=ABSENT)
    if not (ids != ABSENT).any():
        raise DataError(f"{FIELD} names no token id; leave it out")
    return TargetTokens(ids, csr)


def _integers(values: Any) -> Array:
    try:
        array = np.array(values, np.int64)
    except (OverflowError, ValueError) as error:
        raise DataError(f"{FIELD} has a number that is not a token id: {error}") from error
    if not np.array_equal(array, np.array(values, np.float64)):
        raise DataError(f"{FIELD} has a number that is not whole")
    return array

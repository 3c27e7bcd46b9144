"""Conversions between the SDK's protobuf messages and the types of the kitchen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as pb

from kitchen.errors import ConfigError, DataError
from kitchen.types import Array, Datum, Floats, LossOutput, Sampled, Tokens

DTYPES: Mapping[int, Any] = {
    pb.DTYPE_FLOAT32: np.float32,
    pb.DTYPE_INT64: np.int64,
    pb.DTYPE_INT32: np.int32,
}
TopTokens = tuple[Tokens, Floats]  # (T, k) ids and nats
MAX_NUMBERS = 2e7  # of a sparse matrix once it is dense, and of a matrix of top tokens
ABSENT_ID = 0  # the token id of an empty cell of a top-k matrix
ABSENT_LOGPROB = -99999.0  # its log-probability, in nats


class MalformedMessage(ValueError):
    """Bytes that are not a message of the API."""


@dataclass(frozen=True)
class ForwardBackward:
    """A request for forward or forward_backward."""

    model: str
    number: int  # its position among the model's requests
    forward_only: bool
    loss: str
    message: pb.ForwardBackwardRequest

    def data(self) -> list[Datum]:
        """Return the batch; raises DataError, which names datum and field."""
        return [
            _datum(message, f"datum {index} of {len(self.message.data)}")
            for index, message in enumerate(self.message.data)
        ]

    def options(self) -> dict[str, float]:
        """Return the loss options; raises ConfigError for one that is not a number."""
        options = self.message.loss_fn_config_v2
        if not options:
            return dict(self.message.loss_fn_config)
        for name, value in options.items():
            if value.WhichOneof("value") == "text":
                raise ConfigError(
                    f"the option {name!r} of the loss {self.loss!r} is a string, but must be a "
                    "number"
                )
        return {name: value.number for name, value in options.items()}


def parse_forward_backward(body: bytes) -> ForwardBackward:
    """Parse the body of a request; raises MalformedMessage."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise MalformedMessage(f"the body is not a ForwardBackwardRequest: {error}") from error
    return ForwardBackward(
        message.model_id, message.seq_id, message.forward_only, message.loss_fn, message
    )


def _datum(message: Any, where: str) -> Datum:
    parts = [np.empty(0, np.int64)]
    for chunk in message.model_input:
        if (kind := chunk.WhichOneof("chunk")) != "encoded_text":
            raise DataError(
                f"{where} has a chunk of {kind or 'no kind'}; this server reads encoded_text only"
            )
        parts.append(_numbers(chunk.encoded_text.tokens, np.int32, f"{where}: its tokens"))
    inputs = {
        name: _tensor(tensor, f"{where}: the field {name!r}")
        for name, tensor in message.loss_fn_inputs.items()
    }
    return Datum(np.concatenate(parts).astype(np.int64), inputs)


def _tensor(message: Any, where: str) -> Array:
    if message.dtype not in DTYPES:
        raise DataError(
            f"{where} has the dtype {message.dtype}, which this server does not support"
        )
    shape = tuple(message.shape)
    dtype = DTYPES[message.dtype]
    if shape and min(shape) < 0:
        raise DataError(f"{where} has the shape {shape}; no dimension may be negative")
    if message.WhichOneof("encoding") == "sparse_csr":
        return _from_csr(message.sparse_csr, shape, dtype, where)
    values = _numbers(message.dense, dtype, where)
    if shape and prod(shape) != values.size:
        raise DataError(f"{where} has {values.size} numbers, which do not fit the shape {shape}")
    return values.reshape(shape or (-1,)).copy()


def _from_csr(message: Any, shape: tuple[int, ...], dtype: Any, where: str) -> Array:
    """Return the dense form of a sparse matrix in CSR format; absent values are 0."""
    values = _numbers(message.values, dtype, where)
    starts = _numbers(message.crow_indices, np.int64, where)
    columns = _numbers(message.col_indices, np.int64, where)
    return dense_of_csr(values, starts, columns, shape, where)


def dense_of_csr(
    values: Array,
    starts: Array,
    columns: Array,
    shape: tuple[int, ...],
    where: str,
    *,
    absent: int = 0,
) -> Array:
    """Return the dense form of a sparse matrix in CSR format; raises DataError."""
    is_consistent = (
        len(shape) == 2
        and len(starts) == shape[0] + 1
        and len(values) == len(columns)
        and starts[0] == 0
        and starts[-1] == len(values)
        and bool((np.diff(starts) >= 0).all())
        and (not len(columns) or (columns.min() >= 0 and columns.max() < shape[1]))
    )
    if not is_consistent:
        raise DataError(
            f"{where} is not a sparse matrix of shape {shape}: its row and column indices do not "
            "fit"
        )
    if shape[0] * shape[1] > MAX_NUMBERS:
        raise DataError(
            f"{where} would have {shape[0]} x {shape[1]} numbers, which is more than this server "
            f"accepts ({MAX_NUMBERS:.0e})"
        )
    dense = np.full(shape, absent, values.dtype)
    dense[np.repeat(np.arange(shape[0]), np.diff(starts)), columns] = values
    return dense


def _numbers(data: bytes, dtype: Any, where: str) -> Array:
    if len(data) % np.dtype(dtype).itemsize:
        raise DataError(f"{where}: {len(data)} bytes are not a whole number of {np.dtype(dtype)}")
    return np.frombuffer(data, dtype)


def loss_output_message(output: LossOutput) -> bytes:
    """Return a serialised ForwardBackwardOutput.

    A record holds consecutive datums whose targets have the same trailing shape.
    """
    message = pb.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", metrics=dict(output.metrics)
    )
    for trailing_shape, arrays in groupby(output.logprobs, lambda array: array.shape[1:]):
        rows = [np.ascontiguousarray(array, np.float32) for array in arrays]
        offsets = np.cumsum([0, *(row.nbytes for row in rows)])
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(rows))
        record.fields["logprobs"].CopyFrom(
            pb.BatchedTensor(
                data=b"".join(row.tobytes() for row in rows),
                offsets=offsets.astype(np.int64).tobytes(),
                dtype=pb.DTYPE_FLOAT32,
                trailing_shape=trailing_shape,
            )
        )
    body: bytes = message.SerializeToString()
    return body


def sample_response(
    drawn: Sequence[Sampled],
    logprobs: Floats | None = None,
    top: TopTokens | None = None,
    sampled_top: Sequence[TopTokens] = (),
    targets: Any = None,
) -> bytes:
    """Return a serialised SampleResponse.

    `logprobs` (T,), `top` (T, k) and the tensor `targets` belong to the prompt, `sampled_top` to
    the completions.
    """
    message = pb.SampleResponse(sequences=_sequences(drawn))
    for sequence, of_sequence in zip(message.sequences, sampled_top, strict=False):
        sequence.topk_sampled_logprobs.CopyFrom(_top_message(of_sequence))
    if targets is not None:
        message.target_prompt_logprobs.CopyFrom(targets)
    if logprobs is not None:
        message.prompt_logprobs = np.asarray(logprobs, np.float32).tobytes()
    if top is not None:
        message.topk_prompt_logprobs.CopyFrom(_top_message(top))
    body: bytes = message.SerializeToString()
    return body


def _top_message(top: TopTokens) -> Any:
    ids, nats = top
    absent = np.isnan(nats)
    return pb.TopkLogprobs(
        token_ids=np.where(absent, ABSENT_ID, ids).astype(np.int32).tobytes(),
        logprobs=np.where(absent, ABSENT_LOGPROB, nats).astype(np.float32).tobytes(),
        length=ids.shape[0],
        k=ids.shape[1],
    )


def _sequences(drawn: Sequence[Sampled]) -> Iterator[Any]:
    for sample in drawn:
        is_stop = sample.stop_reason == "stop"
        yield pb.SampledSequence(
            stop_reason=pb.STOP_REASON_STOP if is_stop else pb.STOP_REASON_LENGTH,
            tokens=sample.tokens.astype(np.int32).tobytes(),
            logprobs=sample.logprobs.astype(np.float32).tobytes(),
        )

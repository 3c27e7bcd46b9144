"""What the SDK sends and reads, in its own messages, to and from the types of the kitchen."""

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
MOST_NUMBERS = 2e7  # of a sparse matrix, once it is written out
NOTHING = (0, -99999.0)  # the id and nats of an empty cell of a top-k matrix


class Malformed(ValueError):
    """Bytes that are no message of the API."""


@dataclass(frozen=True)
class Passing:
    """A call of forward or forward_backward."""

    model: str
    number: int  # in the order of the model's requests
    forward_only: bool
    loss: str
    message: pb.ForwardBackwardRequest

    def data(self) -> list[Datum]:
        """Raises DataError that names datum and field."""
        return [
            _datum(message, f"datum {index} of {len(self.message.data)}")
            for index, message in enumerate(self.message.data)
        ]

    def options(self) -> dict[str, float]:
        """Raises ConfigError for an option that is no number."""
        if self.message.loss_fn_config_v2:
            for name, value in self.message.loss_fn_config_v2.items():
                if value.WhichOneof("value") == "text":
                    raise ConfigError(
                        f"the option {name!r} of the loss {self.loss!r} is a text, and must be a "
                        "number"
                    )
            return {name: value.number for name, value in self.message.loss_fn_config_v2.items()}
        return dict(self.message.loss_fn_config)


def passing(body: bytes) -> Passing:
    """Raises Malformed."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise Malformed(f"the body is no ForwardBackwardRequest: {error}") from error
    return Passing(message.model_id, message.seq_id, message.forward_only, message.loss_fn, message)


def _datum(message: Any, where: str) -> Datum:
    parts = []
    for chunk in message.model_input:
        if (kind := chunk.WhichOneof("chunk")) != "encoded_text":
            raise DataError(
                f"{where}: it has a chunk of {kind or 'no kind'}, and this server reads text alone"
            )
        parts.append(_numbers(chunk.encoded_text.tokens, np.int32, f"{where}: its tokens"))
    inputs = {
        name: _tensor(tensor, f"{where}: the field {name!r}")
        for name, tensor in message.loss_fn_inputs.items()
    }
    return Datum(np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64), inputs)


def _tensor(message: Any, where: str) -> Array:
    if message.dtype not in DTYPES:
        raise DataError(
            f"{where} has the number format {message.dtype}, which is none that this server reads"
        )
    shape, dtype = tuple(message.shape), DTYPES[message.dtype]
    if shape and min(shape) < 0:
        raise DataError(f"{where} has the shape {shape}, and no side can be below 0")
    if message.WhichOneof("encoding") == "sparse_csr":
        return _from_csr(message.sparse_csr, shape, dtype, where)
    found = _numbers(message.dense, dtype, where)
    if shape and prod(shape) != found.size:
        raise DataError(f"{where} has {found.size} numbers, which make no array of shape {shape}")
    return found.reshape(shape or (-1,)).copy()


def _from_csr(message: Any, shape: tuple[int, ...], dtype: Any, where: str) -> Array:
    """What is not listed is 0."""
    values = _numbers(message.values, dtype, where)
    starts, columns = (
        _numbers(each, np.int64, where) for each in (message.crow_indices, message.col_indices)
    )
    fits = (
        len(shape) == 2
        and len(starts) == shape[0] + 1
        and len(values) == len(columns)
        and starts[0] == 0
        and starts[-1] == len(values)
        and bool((np.diff(starts) >= 0).all())
        and (not len(columns) or (columns.min() >= 0 and columns.max() < shape[1]))
    )
    if not fits:
        raise DataError(
            f"{where} is no sparse matrix of shape {shape}: its rows and columns do not fit"
        )
    if shape[0] * shape[1] > MOST_NUMBERS:
        raise DataError(
            f"{where} would have {shape[0]} x {shape[1]} numbers, which is more than this server "
            "takes"
        )
    found = np.zeros(shape, dtype)
    found[np.repeat(np.arange(shape[0]), np.diff(starts)), columns] = values
    return found


def _numbers(data: bytes, dtype: Any, where: str) -> Array:
    if len(data) % np.dtype(dtype).itemsize:
        raise DataError(f"{where}: {len(data)} bytes are no whole count of {np.dtype(dtype)}")
    return np.frombuffer(data, dtype)


def loss_output(output: LossOutput) -> bytes:
    """As a ForwardBackwardOutput; data whose targets have unlike widths go into records of their
    own, in order.
    """
    message = pb.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", metrics=dict(output.metrics)
    )
    for width, arrays in groupby(output.logprobs, lambda array: array.shape[1:]):
        rows = [np.ascontiguousarray(array, np.float32) for array in arrays]
        ends = np.cumsum([0, *(row.nbytes for row in rows)])
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(rows))
        record.fields["logprobs"].CopyFrom(
            pb.BatchedTensor(
                data=b"".join(row.tobytes() for row in rows),
                offsets=ends.astype(np.int64).tobytes(),
                dtype=pb.DTYPE_FLOAT32,
                trailing_shape=width,
            )
        )
    body: bytes = message.SerializeToString()
    return body


def samples(
    drawn: Sequence[Sampled],
    logprobs: Floats | None = None,
    top: tuple[Tokens, Floats] | None = None,
) -> bytes:
    """As a SampleResponse; `logprobs` (T,) and `top` (T, k) are of the prompt."""
    message = pb.SampleResponse(sequences=_sequences(drawn))
    if logprobs is not None:
        message.prompt_logprobs = np.asarray(logprobs, np.float32).tobytes()
    if top is not None:
        ids, nats = top
        absent = np.isnan(nats)
        message.topk_prompt_logprobs.CopyFrom(
            pb.TopkLogprobs(
                token_ids=np.where(absent, NOTHING[0], ids).astype(np.int32).tobytes(),
                logprobs=np.where(absent, NOTHING[1], nats).astype(np.float32).tobytes(),
                length=ids.shape[0],
                k=ids.shape[1],
            )
        )
    body: bytes = message.SerializeToString()
    return body


def _sequences(drawn: Sequence[Sampled]) -> Iterator[Any]:
    for one in drawn:
        reason = pb.STOP_REASON_STOP if one.stop_reason == "stop" else pb.STOP_REASON_LENGTH
        yield pb.SampledSequence(
            stop_reason=reason,
            tokens=one.tokens.astype(np.int32).tobytes(),
            logprobs=one.logprobs.astype(np.float32).tobytes(),
        )

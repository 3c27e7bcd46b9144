"""Messages as the SDK sends them."""

from __future__ import annotations

import numpy as np
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto

from adapters.tinker.datums import sdk_datum
from kitchen.types import Datum


def forward_backward(model: str, number: int, *, forward_only: bool = False) -> bytes:
    """Return a request with two short sequences."""
    data = [
        Datum(
            np.arange(1, length),
            {"target_tokens": np.arange(2, length + 1), "weights": np.ones(length - 1, np.float32)},
        )
        for length in (4, 6)
    ]
    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(
            data=[sdk_datum(datum) for datum in data], loss_fn="cross_entropy"
        ),
        model_id=model,
        seq_id=number,
    )
    message = forward_backward_request_to_proto(request)
    message.forward_only = forward_only
    body: bytes = message.SerializeToString()
    return body

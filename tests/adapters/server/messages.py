"""Messages as the SDK would send them."""

from __future__ import annotations

import numpy as np
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto

from adapters.tinker.datums import theirs
from kitchen.types import Datum


def forward_backward(model: str, number: int, *, only: bool = False) -> bytes:
    """Two short sequences; `only` forward."""
    data = [
        Datum(
            np.arange(1, length),
            {"target_tokens": np.arange(2, length + 1), "weights": np.ones(length - 1, np.float32)},
        )
        for length in (4, 6)
    ]
    asked = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(
            data=[theirs(each) for each in data], loss_fn="cross_entropy"
        ),
        model_id=model,
        seq_id=number,
    )
    message = forward_backward_request_to_proto(asked)
    message.forward_only = only
    body: bytes = message.SerializeToString()
    return body

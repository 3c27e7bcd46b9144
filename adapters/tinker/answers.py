"""Results of a server, checked and converted to ours.

A server in the wild may leave out values, or return fewer than were asked for. Each function here
raises BackendError, which names the server, for a result that is not of the promised shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kitchen.backend.losses import (
    LOSSES,
    Options,
    like_targets,
    named_loss_grads,
    scored_positions,
)
from kitchen.errors import BackendError, Diverged
from kitchen.types import Array, Datum, Floats, Loss, LossOutput, Sampled, Tokens

ABSENT_LOGPROB = -99999.0  # nats; marks an empty cell of a top-k matrix on the wire
# nats; log-probabilities in bfloat16 may be above 0 by a rounding error
ROUNDING = 0.1
LOSS_SUM = "loss:sum"


def loss_output(
    result: Any, data: Sequence[Datum], loss: str, options: Options | None, server: str
) -> LossOutput:
    """Convert the result of a pass with a named loss, which is computed here if it is missing.

    A loss that the server reports under another reduction, such as `loss:mean`, does not count:
    only sums over tokens are comparable. Raises Diverged for values that are not finite.
    """
    logprobs = training_logprobs(result, data, loss, server)
    metrics = dict(result.metrics or {})
    if loss in LOSSES and LOSS_SUM not in metrics:
        metrics |= _computed_loss(loss, options, data, logprobs, server)
    if LOSS_SUM not in metrics:
        raise BackendError(
            f"{server} returned no {LOSS_SUM} for the loss {loss!r}, which cannot be computed here"
        )
    if not np.isfinite(metrics[LOSS_SUM]):
        raise Diverged(
            f"{server} reports that the loss is {metrics[LOSS_SUM]}: lower the learning rate, or "
            "check the data"
        )
    return LossOutput(logprobs, metrics)


def _computed_loss(
    loss: str,
    options: Options | None,
    data: Sequence[Datum],
    logprobs: Sequence[Array],
    server: str,
) -> Mapping[str, float]:
    try:
        metrics, _ = named_loss_grads(loss, options, data, logprobs)
    except Diverged as error:
        raise Diverged(
            f"{server} returned log-probabilities for which the loss {loss!r} is not a finite "
            "number: lower the learning rate, or check the data"
        ) from error
    return metrics


def training_logprobs(
    result: Any, data: Sequence[Datum], loss: str | Loss, server: str
) -> tuple[Array, ...]:
    """Return the log-probabilities of each datum, in the shape of its targets.

    Raises Diverged if those of a scored token are not finite, as weights that diverged give such.
    """
    outputs = result.loss_fn_outputs
    if len(outputs) != len(data):
        raise BackendError(
            f"{server} returned results of {len(outputs)} datums for a batch of {len(data)}"
        )
    logprobs = tuple(
        _datum_logprobs(output, np.shape(datum.targets), f"datum {index} of {len(data)}", server)
        for index, (output, datum) in enumerate(zip(outputs, data, strict=True))
    )
    if isinstance(loss, str) and loss not in LOSSES:
        return logprobs  # it is not known which tokens it scores
    return tuple(
        _checked_scored(
            array, scored_positions(loss, datum), f"datum {index} of {len(data)}", server
        )
        for index, (array, datum) in enumerate(zip(logprobs, data, strict=True))
    )


def _datum_logprobs(output: Any, shape: tuple[int, ...], datum: str, server: str) -> Array:
    tensor = output.get("logprobs")
    if tensor is None:
        raise BackendError(f"{server} returned no log-probabilities for {datum}")
    array = np.asarray(tensor.to_numpy())
    if not np.issubdtype(array.dtype, np.floating):
        raise BackendError(
            f"{server} returned log-probabilities of the type {array.dtype} for {datum}; they must "
            "be floating-point numbers"
        )
    if array.size != np.prod(shape):
        raise BackendError(
            f"{server} returned log-probabilities of shape {array.shape} for {datum}, whose "
            f"targets have shape {shape}"
        )
    return array.reshape(shape).astype(np.float32)


def _checked_scored(array: Array, mask: Array, datum: str, server: str) -> Array:
    """Check the log-probabilities that the loss scores; others are 0 if they are not finite."""
    scored = like_targets(mask, array)
    is_finite = np.isfinite(array)
    if not is_finite[scored].all():
        raise Diverged(
            f"{server} returned log-probabilities of {datum} that are not finite numbers: lower "
            "the learning rate, or check the data"
        )
    _check_not_positive(array[scored], f"of {datum}", server)
    return np.where(is_finite, array, np.float32(0.0))


def samples(
    sequences: Sequence[Any], count: int, max_tokens: int, server: str
) -> Sequence[Sampled]:
    """Return the completions of one prompt; there must be `count`, of 1 to `max_tokens` tokens."""
    if len(sequences) != count:
        raise BackendError(f"{server} returned {len(sequences)} completions, not {count}")
    return [_sampled(sequence, max_tokens, server) for sequence in sequences]


def _sampled(sequence: Any, max_tokens: int, server: str) -> Sampled:
    tokens = sequence.tokens_np if sequence.tokens_np is not None else sequence.tokens
    tokens = np.asarray(tokens, np.int64)
    if not 1 <= len(tokens) <= max_tokens:
        raise BackendError(
            f"{server} returned a completion of {len(tokens)} tokens; at least 1 and at most "
            f"max_tokens={max_tokens} were asked for"
        )
    if tokens.min() < 0:
        raise BackendError(f"{server} returned a completion with the token id {tokens.min()}")
    logprobs = sequence.logprobs_np if sequence.logprobs_np is not None else sequence.logprobs
    if logprobs is None:
        raise BackendError(f"{server} returned a completion without log-probabilities")
    if len(logprobs) != len(tokens):
        raise BackendError(
            f"{server} returned {len(logprobs)} log-probabilities for a completion of "
            f"{len(tokens)} tokens"
        )
    nats = _nats(logprobs)
    _check_logprobs(nats, "of a completion", server)
    return Sampled(tokens, nats, sequence.stop_reason)


def prompt_logprobs(values: Sequence[float | None] | None, length: int, server: str) -> Floats:
    """Return (T,) log-probabilities in nats; NaN for the first token, which some servers omit."""
    if values is None:
        raise BackendError(f"{server} returned no log-probabilities of the prompt")
    nats = _nats(values)
    # the value that is missing is the first one only if the next ones are there
    if len(nats) == length - 1 and not np.isnan(nats[:1]).any():
        nats = np.insert(nats, 0, np.nan)
    if len(nats) != length:
        raise BackendError(
            f"{server} returned {len(nats)} log-probabilities for a prompt of {length} tokens; "
            f"there must be {length}, or {length - 1} without the first token"
        )
    nats[:1] = np.nan  # nothing precedes the first token, whatever the server returns for it
    _check_logprobs(nats[1:], "of the prompt", server)
    return nats


def top_logprobs(result: Any, length: int, k: int, server: str) -> tuple[Tokens, Floats]:
    """Return (T, k) token ids and nats; -1 and NaN in the first row, which some servers omit."""
    top = result.topk_prompt_logprobs_np
    if top is None:
        raise BackendError(f"{server} returned no top tokens of the prompt")
    ids, nats = np.asarray(top.token_ids, np.int64), np.asarray(top.logprobs, np.float32)
    if ids.shape == nats.shape == (length - 1, k):
        ids, nats = np.insert(ids, 0, -1, axis=0), np.insert(nats, 0, np.nan, axis=0)
    if not ids.shape == nats.shape == (length, k):
        raise BackendError(
            f"{server} returned top tokens of shape {ids.shape} with log-probabilities of shape "
            f"{nats.shape} for a prompt of {length} tokens and k={k}; there must be {length} rows, "
            f"or {length - 1} without the first token, of {k} columns"
        )
    absent = (nats <= ABSENT_LOGPROB) | np.isnan(nats)
    absent[0] = True  # nothing precedes the first token
    if absent[1:].any():
        row = int(absent[1:].any(axis=1).argmax()) + 1
        raise BackendError(
            f"{server} returned fewer than k={k} top tokens for token {row} of the prompt"
        )
    if (ids[1:] < 0).any():
        raise BackendError(f"{server} returned the token id {ids[1:].min()} among top tokens")
    _check_logprobs(nats[1:], "of top tokens", server)
    return np.where(absent, -1, ids), np.where(absent, np.nan, nats).astype(np.float32)


def tinker_path(path: str | None, server: str) -> str:
    """Return the path of saved weights."""
    if path is None or not path.startswith("tinker://"):
        raise BackendError(f"{server} saved weights as {path!r}; their path must be tinker://...")
    return path


def _nats(values: Sequence[float | None] | Array) -> Array:
    """Return an array of 32-bit floats, with NaN for None."""
    if isinstance(values, np.ndarray):
        return values.astype(np.float32)
    return np.array([np.nan if value is None else value for value in values], np.float32)


def _check_logprobs(nats: Array, where: str, server: str) -> None:
    broken = ~np.isfinite(nats)
    if broken.any():
        first = np.argwhere(broken)[0].tolist()
        raise BackendError(
            f"{server} returned log-probabilities {where} that are not finite numbers, such as "
            f"{nats[tuple(first)]} at position {first[0]} of {len(nats)}"
        )
    _check_not_positive(nats, where, server)


def _check_not_positive(nats: Array, where: str, server: str) -> None:
    if nats.size and nats.max() > ROUNDING:
        raise BackendError(
            f"{server} returned the log-probability {nats.max():g} {where}; log-probabilities are "
            "at most 0"
        )

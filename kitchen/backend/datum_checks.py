"""Checks of training data, which every adapter makes before it touches a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kitchen.backend.losses import Options, find_loss, options_of
from kitchen.errors import DataError, did_you_mean
from kitchen.types import Datum, Loss


def check_data(
    data: Sequence[Datum],
    loss: str | Loss,
    options: Options | None,
    *,
    vocabulary: int,
    context: int,
) -> None:
    """Raise DataError, which names datum and field, or ConfigError for an unknown loss or option.

    `vocabulary` is the number of token ids, `context` the context length of the model in tokens.
    """
    if isinstance(loss, str):
        find_loss(loss, options)
    group = 1 if isinstance(loss, str) else int(getattr(loss, "group", None) or 1)
    if len(data) % group:
        raise DataError(
            f"the loss needs groups of {group} adjacent datums, and {len(data)} datums cannot be "
            "divided into them"
        )
    for where, datum in _checked_datums(data, vocabulary, context):
        _check_fields(datum, loss, where)
        if isinstance(loss, str):
            _check_options(datum, loss, options, where)


def check_data_of_unlisted_loss(data: Sequence[Datum], *, vocabulary: int, context: int) -> None:
    """Check data for a loss that only the backend knows, and with it the inputs that it reads.

    Raises DataError for bad tokens or targets, and for inputs without a value for each token.
    """
    for where, datum in _checked_datums(data, vocabulary, context):
        for field, values in datum.loss_inputs.items():
            _check_field(datum, field, values, where, same_shape=False)


def _checked_datums(
    data: Sequence[Datum], vocabulary: int, context: int
) -> Iterator[tuple[str, Datum]]:
    """Yield each datum, whose tokens and targets are valid, with its place for messages."""
    if not len(data):
        raise DataError("the batch is empty: forward and forward_backward need at least one datum")
    for index, datum in enumerate(data):
        where = f"datum {index} of {len(data)}"
        if not isinstance(datum, Datum):
            raise DataError(f"{where}: {_not_a_datum(datum)}")
        _check_tokens(datum, where, vocabulary, context)
        yield where, datum


def _not_a_datum(value: Any) -> str:
    if isinstance(value, Mapping):
        shown = f"a mapping with {', '.join(map(repr, value))}"
    else:
        shown = f"{value!r:.80}"
    return (
        f"a training client takes Datum(tokens, loss_inputs), not {shown}; "
        "the stage RenderDataset (stages.chat.render) turns rows of text into datums"
    )


def _check_tokens(datum: Datum, where: str, vocabulary: int, context: int) -> None:
    tokens = np.asarray(datum.tokens)
    targets = datum.loss_inputs.get("target_tokens")
    if targets is None:
        raise DataError(
            f"{where}: the field 'target_tokens' is missing; its fields are "
            f"{sorted(datum.loss_inputs)}"
        )
    if tokens.ndim != 1 or not len(tokens):
        raise DataError(
            f"{where}: the field 'tokens' has shape {tokens.shape}, not (N,) with N at least 1"
        )
    if len(tokens) > context:
        raise DataError(
            f"{where}: {len(tokens)} tokens are more than the model's context of {context}"
        )
    for field, ids in (("tokens", tokens), ("target_tokens", np.asarray(targets))):
        if not np.issubdtype(ids.dtype, np.integer):
            raise DataError(f"{where}: the field {field!r} has dtype {ids.dtype}, not an integer")
        if ids.size and (ids.min() < 0 or ids.max() >= vocabulary):
            bad = ids[(ids < 0) | (ids >= vocabulary)][0]
            raise DataError(
                f"{where}: the field {field!r} has token {bad}, outside the vocabulary of "
                f"{vocabulary}"
            )


def _check_fields(datum: Datum, loss: str | Loss, where: str) -> None:
    """Check the loss inputs; a custom loss may read any field."""
    if isinstance(loss, str):
        named = find_loss(loss)[0]
        required = {"target_tokens", *named.inputs}
        allowed = required | set(named.per_token)
    else:
        required, allowed = set(), set(datum.loss_inputs)
    for field in sorted(required - set(datum.loss_inputs)):
        raise DataError(f"{where}: the field {field!r} is missing, which the loss {loss!r} reads")
    for field, values in datum.loss_inputs.items():
        if field not in allowed:
            raise DataError(
                f"{where}: the loss {loss!r} reads no field {field!r}; "
                f"{did_you_mean(field, allowed)}"
            )
        _check_field(datum, field, values, where, same_shape=isinstance(loss, str))


def _check_options(datum: Datum, loss: str, options: Options | None, where: str) -> None:
    """Check what the loss demands of its inputs, and options that the datum gives by token."""
    named, complete = find_loss(loss, options)
    is_given = any(name in datum.loss_inputs for name in named.per_token)
    problem = named.check_inputs(datum.loss_inputs)
    if not problem and is_given:
        problem = named.check(options_of(named, complete, datum))
    if problem:
        raise DataError(f"{where}: {problem}")


def _check_field(datum: Datum, field: str, values: Any, where: str, *, same_shape: bool) -> None:
    shape = np.shape(datum.targets)
    wrong_length = np.shape(values)[:1] != np.shape(datum.tokens)
    if wrong_length or (same_shape and np.shape(values) != shape):
        raise DataError(
            f"{where}: the field {field!r} has shape {np.shape(values)}, which does not match "
            f"tokens of shape {np.shape(datum.tokens)} and target_tokens of shape {shape}"
        )
    finite = np.isfinite(np.asarray(values, np.float64))
    if not finite.all():
        position = int(np.argwhere(~finite)[0][0])
        raise DataError(
            f"{where}: the field {field!r} is {np.asarray(values)[position]} at position {position}"
        )

"""Checks of a request to sample or to score, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from kitchen.errors import ConfigError, DataError
from kitchen.types import Tokens


def prompt_error(tokens: Tokens, *, vocabulary: int, context: int) -> DataError | None:
    """Return the error for tokens that a model cannot read, or None.

    `vocabulary` is the number of token ids, `context` the context length of the model in tokens.
    """
    ids = np.asarray(tokens)
    if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
        return DataError(
            f"the prompt has shape {ids.shape} and dtype {ids.dtype}, not (T,) integers with T at "
            "least 1"
        )
    if len(ids) > context:
        return DataError(
            f"the prompt has {len(ids)} tokens, more than the model's context of {context}"
        )
    if ids.min() < 0 or ids.max() >= vocabulary:
        bad = ids[(ids < 0) | (ids >= vocabulary)][0]
        return DataError(f"the prompt has token {bad}, outside the vocabulary of {vocabulary}")
    return None


def targets_error(tokens: Tokens, targets: Tokens | None, *, vocabulary: int) -> DataError | None:
    """Return the error for ids to score at the positions of a sequence after the first, or None."""
    if targets is None:
        return None
    ids = np.asarray(targets)
    if ids.ndim != 2 or len(ids) != len(tokens) - 1 or not np.issubdtype(ids.dtype, np.integer):
        return DataError(
            f"the ids to score have shape {ids.shape} and dtype {ids.dtype}, not "
            f"({len(tokens) - 1}, K) integers"
        )
    if ids.size and (ids.min() < -1 or ids.max() >= vocabulary):
        bad = ids[(ids < -1) | (ids >= vocabulary)][0]
        return DataError(f"token {bad} is to be scored, outside the vocabulary of {vocabulary}")
    return None


def sampling_error(
    *,
    count: int,
    max_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    stop: Sequence[str] | Sequence[int],
) -> ConfigError | None:
    """Return one error that lists every invalid parameter of `Sampler.sample`, or None."""
    whole_numbers = {
        "count": (count, 1),
        "max_tokens": (max_tokens, 1),
        "top_k": (top_k, 0),
        "seed": (seed, 0),
    }
    problems = [
        f"{name} is {value!r}, and must be a whole number of at least {least}"
        for name, (value, least) in whole_numbers.items()
        if not _is_whole_number(value, least)
    ]
    if not temperature >= 0:
        problems.append(f"temperature is {temperature}, and must be at least 0")
    if not 0 < top_p <= 1:
        problems.append(f"top_p is {top_p}, and must be above 0 and at most 1")
    problems += _stop_problems(stop)
    return ConfigError("; ".join(problems)) if problems else None


def _is_whole_number(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _stop_problems(stop: Any) -> Iterator[str]:
    is_list = isinstance(stop, Sequence | np.ndarray) and not isinstance(stop, str)
    if not is_list or not all(isinstance(entry, str | int | np.integer) for entry in stop):
        yield f"stop is {stop!r}, and must be a list of strings or token ids"
    if is_list and any(isinstance(entry, str) and not entry for entry in stop):
        yield f"stop is {stop!r}, and must not contain an empty string"

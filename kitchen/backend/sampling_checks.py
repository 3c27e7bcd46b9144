"""What every adapter asks of a request to sample or to score, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from kitchen.errors import ConfigError, DataError
from kitchen.types import Tokens


def unreadable(tokens: Tokens, *, vocabulary: int, context: int) -> DataError | None:
    """Why a model of so many token ids, which reads at most `context` tokens, cannot read these;
    None if it can.
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


def unfit(
    *,
    count: int,
    max_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    stop: Sequence[str] | Sequence[int],
) -> ConfigError | None:
    """Everything that is wrong with the parameters of `Sampler.sample`; None if they can be."""
    listed = isinstance(stop, Sequence | np.ndarray) and not isinstance(stop, str)
    stops = list(stop) if listed else []
    whole = {
        "count": (count, 1),
        "max_tokens": (max_tokens, 1),
        "top_k": (top_k, 0),
        "seed": (seed, 0),
    }
    rules = {
        **{
            f"{name} is {value!r}, and must be a whole number of at least {least}": isinstance(
                value, Integral
            )
            and not isinstance(value, bool)
            and value >= least
            for name, (value, least) in whole.items()
        },
        f"temperature is {temperature}, and must be at least 0": temperature >= 0,
        f"top_p is {top_p}, and must be above 0 and at most 1": 0 < top_p <= 1,
        f"stop is {stop!r}, and must be a list of strings or token ids": listed
        and all(isinstance(one, str | int | np.integer) for one in stops),
        f"stop is {stop!r}, and an empty string stops nothing": "" not in stops,
    }
    broken = [text for text, kept in rules.items() if not kept]
    return ConfigError("; ".join(broken)) if broken else None

"""As many choices as are asked for, in as many requests as the server needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from adapters.openai.connection import Connection, Request
from adapters.openai.request_fields import RequestFields

T = TypeVar("T")
MAX_CHOICES = 128  # of one request to OpenAI
MAX_SEED = 2**63  # exclusive: servers read seeds as signed 64-bit integers


async def ask_for_choices(
    connection: Connection,
    request: Request,
    count: int,
    seed: int,
    check: Callable[[Any], Sequence[T]],
    fields: RequestFields,
) -> Sequence[T]:
    """Return `count` choices in order; `check` reads those of an answer, which are at least one.

    A server that returns fewer choices than asked for is asked again for the rest, with a seed
    that is derived from the first.
    """

    async def ask(first: int, number: int) -> Sequence[T]:
        choices: list[T] = []
        while len(choices) < number:
            seed_here = derived_seed(seed, first + len(choices))
            drawn = drawn_request(request, fields, number - len(choices), seed_here)
            choices += await connection.post(drawn, check)
        return choices[:number]

    parts = [ask(at, min(MAX_CHOICES, count - at)) for at in range(0, count, MAX_CHOICES)]
    return list(chain.from_iterable(await asyncio.gather(*parts)))


def drawn_request(request: Request, fields: RequestFields, number: int, seed: int) -> Request:
    """Return a request for a number of choices; the settings may send another seed, or none."""
    body = fields.body({**request.body, "n": number, "seed": seed})
    return replace(request, body=body, asked_seed=None if body.get("seed") == seed else seed)


def derived_seed(seed: int, place: int) -> int:
    """Return the seed of a request whose first choice has this place; the first keeps its own."""
    if not place:
        return seed % MAX_SEED
    return int(np.random.SeedSequence([seed, place]).generate_state(1)[0] >> 1)

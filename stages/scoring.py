"""Log-probabilities that weights, known by a name, give to sequences."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kitchen.ports import BlobStore, Sampler, TrainingClient, arrival
from kitchen.types import Floats, Tokens
from kitchen.weights import find_weights


def sampler_of(name: str, client: TrainingClient, blobs: BlobStore | None) -> Sampler:
    """Raises ConfigError for a name that no weights have."""
    return client.sampler(find_weights(name, client, blobs).source)


async def scores(sampler: Sampler, sequences: Sequence[Tokens]) -> list[Floats]:
    """Of each sequence (T,) nats, the first NaN; all are asked for at once, and the sampler is closed."""
    try:
        return list(await asyncio.gather(*[arrival(sampler.logprobs(tokens)) for tokens in sequences]))
    finally:
        sampler.close()

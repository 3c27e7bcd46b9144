"""Log-probabilities that weights, known by a name, give to sequences."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from kitchen.artifacts.weights import find_weights
from kitchen.errors import ConfigError
from kitchen.ports import BlobStore, ModelCatalog, Sampler, Tokenizer, TrainingClient, arrival
from kitchen.stage import Stage
from kitchen.types import Facts, Floats, Sampled, Tokens


class Reference(Sampler, Protocol):
    """Weights that do not change, which those in training are compared with."""


class IdentifyWeights(Stage):
    """Take down which weights a name stands for, before a stage whose answers are kept asks them.

    What a kept stage (ADR 5) found is not computed again when a run is gone on with; this is, so
    that a folder which holds other weights by then is refused here.
    """

    name: str  # of weights
    what: str = "weights"  # that the names of its facts begin with

    def run(self, client: TrainingClient, blobs: BlobStore | None = None) -> Facts:
        return weights_facts(self.name, self.what, client, blobs)

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.name, client, blobs)


def weights_facts(name: str, what: str, client: TrainingClient, blobs: BlobStore | None) -> Facts:
    """What is to be found again of weights: their name, their digest if it is known, and the model
    they are of.
    """
    found = find_weights(name, client, blobs)
    return Facts({**found.facts(client, what), f"{what}.model": found.model})


class OpenReference(Stage):
    """Open weights to compare with; they must read the same tokens, and be the same when the run is
    gone on with.
    """

    name: str  # of weights

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        blobs: BlobStore | None = None,
    ) -> tuple[Reference, Facts]:
        facts = weights_facts(self.name, "reference", client, blobs)
        return open_reference(self.name, "reference", client, models, tokenizer, blobs), facts

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.name, client, blobs)


def open_reference(
    name: str,
    what: str,
    client: TrainingClient,
    models: ModelCatalog,
    tokenizer: Tokenizer,
    blobs: BlobStore | None,
) -> Sampler:
    """Raises ConfigError for weights that read other tokens; `what` they are is told there."""
    found = find_weights(name, client, blobs)
    if not same_tokens(models.tokenizer(found.model), tokenizer):
        raise ConfigError(
            f"{what}={name!r} reads other tokens than the model that is trained, so that its "
            "chances of "
            "a token say nothing of the other's; take weights with the same tokenizer"
        )
    return client.sampler(found.source)


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether they have as many tokens, and read a text of many letters and words alike."""
    probe = "The quick brown fox jumps over 1,234 lazy dogs.\n\n\t" + "".join(
        map(chr, range(32, 0x250))
    )
    return one.vocabulary == other.vocabulary and np.array_equal(
        one.encode(probe), other.encode(probe)
    )


def open_sampler(name: str, client: TrainingClient, blobs: BlobStore | None) -> Sampler:
    """Raises ConfigError for a name that no weights have."""
    return client.sampler(find_weights(name, client, blobs).source)


MAX_SEED = 2**31  # that all servers can read


def spawn_seeds(parts: Sequence[int], count: int) -> list[int]:
    """So many to sample with, below SEEDS."""
    found: list[int] = (np.random.SeedSequence(list(parts)).generate_state(count) >> 1).tolist()
    return found


async def sample_answers(
    sampler: Sampler, prompts: Sequence[Tokens], seed: Sequence[int], **how: Any
) -> list[Sequence[Sampled]]:
    """Answers to each prompt, by what `seed` is made of; `how` is that of `sample`, and all are
    asked for at once.
    """
    asked = [
        sampler.sample(one, seed=own, **how)
        for one, own in zip(prompts, spawn_seeds(seed, len(prompts)), strict=True)
    ]
    return list(await asyncio.gather(*map(arrival, asked)))


async def score_sequences(sampler: Sampler, sequences: Sequence[Tokens]) -> list[Floats]:
    """Of each sequence (T,) nats, the first NaN; all are asked for at once."""
    return list(await asyncio.gather(*[arrival(sampler.logprobs(tokens)) for tokens in sequences]))

"""Requests to the local sampler, and counts of what it reads, generates and batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adapters.peft.device import Machine
from adapters.peft.sampler import PeftSampler
from adapters.peft.sampling.conversation_cache import KV, ConversationCache
from adapters.peft.sampling.frozen_model import FrozenModel, load_named
from adapters.peft.sampling.requests import SamplingRequest
from adapters.peft.settings import Settings
from kitchen.types import Sampled, Tokens
from tests.support.one_model import OneModel

DEVICE = os.environ.get("KITCHEN_TEST_DEVICE", "cpu")


def random_prompts(*lengths: int) -> list[Tokens]:
    """Return prompts of these lengths, none of which begins like another."""
    rng = np.random.default_rng(8)
    return [rng.integers(3, 300, length) for length in lengths]


def sampling_request(prompt: Tokens, seed: int, **settings: Any) -> SamplingRequest:
    """Return a request for one completion of up to 9 tokens, unless the settings change that."""
    defaults: dict[str, Any] = {
        "count": 1,
        "max_tokens": 9,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "stop": (),
    }
    return SamplingRequest(prompt, seed=seed, **{**defaults, **settings})


def record_embedded(frozen: Any) -> list[int]:
    """Return a list to which each forward pass of a frozen model appends its number of tokens."""
    counts = list[int]()
    embeddings = frozen.network.model.get_input_embeddings()
    embeddings.register_forward_hook(lambda module, inputs, output: counts.append(len(output)))
    return counts


def prefilled(embedded: Sequence[int], completions: Sequence[Sampled]) -> int:
    """Return how many prompt tokens were read; completions embed all but their last token."""
    return sum(embedded) - sum(len(completion.tokens) - 1 for completion in completions)


class RecordingCache(ConversationCache):
    """A conversation cache that records how many sampling requests each batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_sizes = list[int]()

    def take(self, prompts: Iterable[Tokens]) -> dict[bytes, KV | None]:
        batch = list(prompts)
        self.batch_sizes.append(len(batch))
        return super().take(batch)


def recording_sampler(folder: Path, **settings: Any) -> tuple[PeftSampler, list[int]]:
    """Return a sampler of the model in a folder, and a list that gets the size of each batch."""
    defaults = {"device": DEVICE, "dtype": "float32", "threads": 1}
    hub: Any = OneModel(folder)
    machine = Machine(Settings(**{**defaults, **settings}), hub)
    cache = RecordingCache()

    def load() -> FrozenModel:
        return replace(load_named(machine, "tiny"), conversations=cache)

    return PeftSampler(machine, "tiny", load), cache.batch_sizes

"""The data of the benchmarks: random excerpts of real text, the same for both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from adapters.local.blobs import LocalBlobs
from adapters.local.datasets import LocalDatasets
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen.ports.sampling import Message, Tokenizer
from kitchen.types import Array, Datum, Tokens
from stages.chat.render import RenderDataset
from stages.data.dataset import LoadDataset
from tests.bench.turns import MODEL as MODEL  # the model of all benchmarks
from tests.bench.turns import Setup

MASKED = 0.75  # fraction of the tokens of a row of B that are not trained on


@dataclass(frozen=True)
class Pair:
    """A prompt and two answers, the first of which is preferred."""

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens


@dataclass(frozen=True)
class Group:
    """A prompt, its completions and their rewards."""

    prompt: Tokens
    completions: tuple[Tokens, ...]
    rewards: tuple[float, ...]


@cache
def tokenizer(model: str) -> Tokenizer:
    return PeftTraining(LocalHub(), LocalBlobs()).tokenizer(model)


def ingredients(setup: Setup, count: int) -> Sequence[Datum]:
    """Return data A: rows of `ingredients` as recipes/sl_basic renders them, prompts masked."""
    rows = LoadDataset("ingredients", seed=setup.seed).run(LocalDatasets())[0]
    data: Sequence[Datum] = RenderDataset().run(rows, tokenizer(setup.model))[0].data[:count]
    return data


def log_uniform(
    setup: Setup, count: int, shortest: int = 64, longest: int = 512
) -> Sequence[Datum]:
    """Return data B: log-uniform lengths, with the first three quarters of each row masked."""
    rng = np.random.default_rng([setup.seed, 1])
    lengths = np.exp(rng.uniform(np.log(shortest), np.log(longest), count)).round().astype(int)
    excerpts = (_random_excerpt(setup.model, rng, int(length) + 1) for length in lengths)
    return [datum(row, int(len(row) * MASKED)) for row in excerpts]


def packs(setup: Setup, count: int, size: int, shortest: int, longest: int) -> list[list[Datum]]:
    """Return packs of rows, each of `size` tokens in all; lengths as in data B up to `longest`.

    The last row of a pack fills it. No row is shorter than `shortest`.
    """
    rng = np.random.default_rng([setup.seed, 6])
    packed: list[list[Datum]] = []
    for _ in range(count):
        rows, left = list[Datum](), size
        while left:
            length = round(float(np.exp(rng.uniform(np.log(shortest), np.log(longest)))))
            length = length if length <= left - shortest else min(left, longest)
            row = _random_excerpt(setup.model, rng, length)
            rows.append(datum(row, int(len(row) * MASKED)))
            left -= length
        packed.append(rows)
    return packed


def pairs(setup: Setup, count: int, prompt: int = 256, answer: int = 64) -> Sequence[Pair]:
    rng = np.random.default_rng([setup.seed, 2])
    sampled: list[Pair] = []
    for _ in range(count):
        sequence = _random_excerpt(setup.model, rng, prompt + answer)
        sampled.append(
            Pair(sequence[:prompt], sequence[prompt:], _random_excerpt(setup.model, rng, answer))
        )
    return sampled


def groups(
    setup: Setup, count: int, size: int = 8, prompt: int = 256, answer: int = 64
) -> Sequence[Group]:
    rng = np.random.default_rng([setup.seed, 3])
    sampled: list[Group] = []
    for _ in range(count):
        sequence = _random_excerpt(setup.model, rng, prompt + answer)
        completions = (
            sequence[prompt:],
            *(_random_excerpt(setup.model, rng, answer) for _ in range(size - 1)),
        )
        sampled.append(Group(sequence[:prompt], completions, tuple(rng.normal(size=size).tolist())))
    return sampled


def prompts(setup: Setup, count: int, length: int = 256) -> Sequence[Tokens]:
    rng = np.random.default_rng([setup.seed, 4])
    return [_random_excerpt(setup.model, rng, length) for _ in range(count)]


def questions(setup: Setup, count: int, length: int = 256) -> Sequence[str]:
    """Return texts that the chat template renders to a given number of tokens."""
    rng, encoder = np.random.default_rng([setup.seed, 5]), tokenizer(setup.model)
    overhead, texts = len(encoder.render(chat_messages(""), answer=True)), list[str]()
    while len(texts) < count:
        text = encoder.decode(_random_excerpt(setup.model, rng, length - overhead))
        # at the ends of an excerpt, characters may be tokenised differently
        if len(encoder.render(chat_messages(text), answer=True)) == length:
            texts.append(text)
    return texts


def chat_messages(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def datum(row: Tokens, masked: int, **inputs: Array) -> Datum:
    """Return a datum of (T,) tokens, the first `masked` of which are not trained on."""
    weights = (np.arange(len(row)) >= masked).astype(np.float32)
    return Datum(row[:-1], {"target_tokens": row[1:], "weights": weights[1:], **inputs})


@cache
def _text(model: str) -> Tokens:
    """Return (T,) tokens of all conversations in `ingredients`, concatenated."""
    rows = LocalDatasets().load("ingredients", split="train")
    texts = (
        message["content"] + "\n" for at in range(len(rows)) for message in rows[at]["messages"]
    )
    return np.concatenate([tokenizer(model).encode(text) for text in texts])


def _random_excerpt(model: str, rng: np.random.Generator, length: int) -> Tokens:
    start = int(rng.integers(len(_text(model)) - length))
    return _text(model)[start : start + length]

"""From a name of weights as it is typed to weights that can be asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kitchen.commands.ordering import Larder, Prepared, Problems, open_blobs, open_larder
from kitchen.errors import ConfigError
from kitchen.ports import BlobStore, HubClient, Message, Sampler, Tokenizer, TrainingClient
from kitchen.recipe import Recipe
from kitchen.runs import read_order
from kitchen.types import Tokens
from kitchen.weights import Weights, WeightsName, find_weights, parse_typed
from kitchen.yaml import yaml_value


@dataclass(frozen=True)
class Opened:
    """Weights that are there, and the adapters that reach them."""

    weights: Weights
    training: TrainingClient
    hub: HubClient
    blobs: BlobStore

    def tokenizer(self) -> Tokenizer:
        return self.training.tokenizer(self.weights.model)

    @contextmanager
    def sampler(self) -> Iterator[Sampler]:
        sampler = self.training.sampler(self.weights.source)
        try:
            yield sampler
        finally:
            sampler.close()


@dataclass(frozen=True)
class Drawing:
    """How texts are drawn."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int


def open_weights(typed: str, larder: Larder) -> Opened:
    """Loads nothing; raises the error of what is unknown, missing or not installed."""
    name, larder = made_with(typed, larder)
    made = Prepared(Recipe)  # type: ignore[type-abstract] # there is none
    open_larder(larder, made)
    kitchen = made.kitchen
    if kitchen is None or kitchen.training is None or kitchen.hub is None or kitchen.blobs is None:
        raise Problems(made.problems)
    weights = find_weights(str(name), kitchen.training, kitchen.blobs)
    return Opened(weights, kitchen.training, kitchen.hub, kitchen.blobs)


def made_with(typed: str, larder: Larder) -> tuple[WeightsName, Larder]:
    """The name, and the adapters to use: of a run its own, with their settings, but for those that were asked for."""
    blobs = open_blobs(larder)
    name = parse_typed(typed, blobs)
    if name.kind != "run":
        return name, larder
    order = read_order(blobs, name.name)
    asked = {port: each for port, each in larder.names.items() if each is not None}
    names = {**order.adapters, **asked, "blobs": larder.chosen()["blobs"]}
    settings = [f"{port}.{key}={yaml_value(value)}" for port, each in order.adapter_settings.items()
                for key, value in each.items() if port != "blobs" and names[port] == order.adapters[port]]
    return name, replace(larder, names=names, settings=(*settings, *larder.settings))


def prompt_tokens(text: str, tokenizer: Tokenizer, system: str, *, raw: bool) -> Tokens:
    """(T,) what is read before the answer: through the chat template where there is one, unless `raw`."""
    if raw or not tokenizer.chat:
        if system:
            raise ConfigError("--system needs a chat template, and " + ("--raw passes it by" if raw else
                              "the tokenizer of these weights has none"))
        tokens = tokenizer.encode(text, special=True)
    else:
        tokens = tokenizer.render(conversation(system, [{"role": "user", "content": text}]), answer=True)
    if not len(tokens):
        raise ConfigError("the prompt is empty, and the model has no token that a text begins with")
    return tokens


def conversation(system: str, turns: Sequence[Message]) -> Sequence[Message]:
    return [*([{"role": "system", "content": system}] if system else []), *turns]


def answer_text(tokens: Tokens, tokenizer: Tokenizer) -> str:
    """Without the stop token at its end, be it a special one or not."""
    return tokenizer.decode(tokens[:-1] if len(tokens) and tokens[-1] in tokenizer.stop_ids else tokens)

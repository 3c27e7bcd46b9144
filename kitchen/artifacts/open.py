"""From a name of weights as it is typed to weights that can be asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kitchen.artifacts.weights import Weights, WeightsName, find_weights, parse_typed_name
from kitchen.config.adapters import adapter_class
from kitchen.config.request import (
    DEFAULT_RUNS_FOLDER,
    AdapterChoice,
    Problems,
    ResolvedRequest,
    open_blobs,
    resolve_adapters,
)
from kitchen.config.yaml import yaml_value
from kitchen.errors import BackendError, ConfigError, did_you_mean
from kitchen.ports import BlobStore, HubClient, Message, Sampler, Tokenizer, TrainingClient
from kitchen.ports.training import require_catalog
from kitchen.recipe import Recipe
from kitchen.runs.store import read_order, run_names
from kitchen.types import Tokens

NO_TEMPLATE_REASON = "the run was trained without it (rendering.chat=false)"


@dataclass(frozen=True)
class OpenWeights:
    """Weights that are there, and the adapters that reach them."""

    weights: Weights
    training: TrainingClient
    hub: HubClient
    blobs: BlobStore

    def tokenizer(self) -> Tokenizer:
        return require_catalog(self.training).tokenizer(self.weights.model)

    def separator(self, tokenizer: Tokenizer) -> str | None:
        """What stands between prompt and answer; None where a chat template does, as it did when a
        run was trained.
        """
        rendering = rendering_settings(self.weights.record)
        chat = tokenizer.chat if rendering.get("chat") is None else rendering["chat"]
        return None if chat else str(rendering.get("separator", ""))

    @contextmanager
    def sampler(self) -> Iterator[Sampler]:
        sampler = self.training.sampler(self.weights.source)
        try:
            yield sampler
        finally:
            sampler.close()


@dataclass(frozen=True)
class SamplingParams:
    """How texts are drawn."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int


@contextmanager
def open_weights(typed: str, adapter_choice: AdapterChoice) -> Iterator[OpenWeights]:
    """Loads nothing; raises the error of what is unknown, missing or not installed."""
    name, adapter_choice = resolve_weights(typed, adapter_choice, ("training", "hub"))
    made = ResolvedRequest(Recipe)  # type: ignore[type-abstract] # there is none
    resolve_adapters(adapter_choice, made)
    kitchen = made.kitchen
    if kitchen is None or kitchen.training is None or kitchen.hub is None or kitchen.blobs is None:
        raise Problems(made.problems)
    try:
        weights = find_weights(str(name), kitchen.training, kitchen.blobs)
        yield OpenWeights(weights, kitchen.training, kitchen.hub, kitchen.blobs)
    except BackendError as error:
        if not (no_run := missing_run_hint(name, adapter_choice, kitchen.blobs)):
            raise
        raise BackendError(f"{no_run}; and as a model: {error}") from error


def resolve_weights(
    typed: str, adapter_choice: AdapterChoice, ports: Sequence[str]
) -> tuple[WeightsName, AdapterChoice]:
    """The name, and the adapters to use: of a run its own at these ports, but for those that were
    asked for.
    """
    blobs = open_blobs(adapter_choice)
    name = parse_typed_name(typed, blobs)
    if name.kind != "run":
        return name, adapter_choice
    order = read_order(blobs, name.name)
    asked = {port: each for port, each in adapter_choice.names.items() if each is not None}
    for port, why in order.missing_objects(asked).items():
        if port in ports:
            raise ConfigError(
                f"{name}: {why}; name the one to use, --{port} NAME, with its settings, "
                f"--set {port}.KEY=VALUE"
            )
    made_by = order.adapters["training"]
    if asked.get("training", made_by) != made_by and "training" not in order.objects:
        adapter_class("training", asked["training"])  # an unknown one is another mistake
        raise ConfigError(
            f"{name}: its weights were made by the training adapter {made_by!r}, and only that can "
            "open "
            "them: leave --training away"
        )
    names = {
        port: each for port, each in order.adapters.items() if port in ports and port not in asked
    }
    settings = [
        f"{port}.{key}={yaml_value(value)}"
        for port, each in order.adapter_settings.items()
        for key, value in each.items()
        if port in ports and {**names, **asked}[port] == order.adapters[port]
    ]
    return name, replace(
        adapter_choice,
        names={**adapter_choice.names, **names},
        settings=(*settings, *adapter_choice.settings),
    )


def missing_run_hint(name: WeightsName, adapter_choice: AdapterChoice, blobs: BlobStore) -> str:
    """Where a name of a model can have been meant as that of a run; else empty."""
    if name.kind != "hub" or "/" in name.name:
        return ""
    return f"there is no run {name.name!r} in {adapter_choice.runs or DEFAULT_RUNS_FOLDER}; {did_you_mean(name.name, run_names(blobs))}"


def rendering_settings(record: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the settings with which a run rendered its data; empty where its recipe has none."""
    return record.get("rendering", {}) if record else {}


def prompt_tokens(text: str, tokenizer: Tokenizer, system: str, *, raw: str) -> Tokens:
    """(T,) what is read before the answer: through the chat template, unless a text says why not."""
    raw = raw or ("" if tokenizer.chat else "the tokenizer of these weights has none")
    if raw and system:
        raise ConfigError(f"--system needs a chat template, and {raw}")
    turns = conversation(system, [{"role": "user", "content": text}])
    tokens = tokenizer.encode(text, special=True) if raw else tokenizer.render(turns, answer=True)
    if not len(tokens):
        raise ConfigError("the prompt is empty, and the model has no token that a text begins with")
    return tokens


def conversation(system: str, turns: Sequence[Message]) -> Sequence[Message]:
    return [*([{"role": "system", "content": system}] if system else []), *turns]


def answer_text(tokens: Tokens, tokenizer: Tokenizer) -> str:
    """Without the stop token at its end, be it a special one or not."""
    return tokenizer.decode(
        tokens[:-1] if len(tokens) and tokens[-1] in tokenizer.stop_ids else tokens
    )

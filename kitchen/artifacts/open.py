"""Opening weights: from a name as typed to a sampler, with the adapters that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kitchen.artifacts.weights import (
    Weights,
    WeightsName,
    find_weights,
    naming_damaged,
    parse_typed_name,
    resolve_model,
)
from kitchen.config.adapter_choice import DEFAULT_RUNS_FOLDER, AdapterChoice, open_blobs
from kitchen.config.adapters import Kitchen, adapter_class
from kitchen.config.order import Order
from kitchen.config.request import Problems, ResolvedRequest, resolve_adapters
from kitchen.config.sources import from_arguments
from kitchen.config.trust import check_trusted_adapters, check_trusted_settings
from kitchen.config.yaml import yaml_value
from kitchen.errors import BackendError, ConfigError, did_you_mean
from kitchen.ports import BlobStore, HubClient, Message, Sampler, Tokenizer, TrainingClient
from kitchen.ports.training import require_catalog
from kitchen.recipe import Recipe
from kitchen.runs.store import read_order, run_names
from kitchen.types import Tokens

# the end of a text decodes to this in the middle of a character
INCOMPLETE_CHARACTER = "\N{REPLACEMENT CHARACTER}"
NO_TEMPLATE_REASON = "the run was trained without it (rendering.chat=false)"


@dataclass(frozen=True)
class OpenWeights:
    """Weights that exist, with the adapters that read them."""

    weights: Weights
    training: TrainingClient
    hub: HubClient
    blobs: BlobStore

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, with the chat template that the run was given."""
        tokenizer = self.weights.tokenizer(require_catalog(self.training))
        template = rendering_settings(self.weights.record).get("template")
        return tokenizer.with_template(template) if template else tokenizer

    def separator(self, tokenizer: Tokenizer) -> str | None:
        """Return the text between prompt and answer; None where a chat template is used.

        The weights of a run are prompted as the run was trained.
        """
        rendering = rendering_settings(self.weights.record)
        chat = tokenizer.chat if rendering.get("chat") is None else rendering["chat"]
        return None if chat else str(rendering.get("separator", ""))

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any]:
        """The variables for the chat template that a run was trained with."""
        rendering = rendering_settings(self.weights.record)
        return dict(rendering.get("chat_template_kwargs", {}))

    @contextmanager
    def sampler(self) -> Iterator[Sampler]:
        sampler = self.training.sampler(self.weights.source)
        try:
            yield sampler
        finally:
            sampler.close()


@dataclass(frozen=True)
class SamplingParams:
    """The parameters that completions are sampled with."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: Sequence[str] = ()  # texts that end a completion, besides the model's own stop tokens


@contextmanager
def open_weights(typed: str, adapter_choice: AdapterChoice) -> Iterator[OpenWeights]:
    """Find weights and build their adapters, without loading the weights.

    Raises ConfigError or BackendError for a name or adapter that is unknown or not installed.
    """
    name, adapter_choice = resolve_weights(typed, adapter_choice, ("training", "hub"))
    resolved = ResolvedRequest(Recipe)  # type: ignore[type-abstract] # no recipe is run
    resolve_adapters(adapter_choice, resolved)
    kitchen = resolved.kitchen
    if kitchen is None or kitchen.blobs is None:
        raise Problems(resolved.problems)
    try:
        with open_on(str(name), kitchen) as opened:
            yield opened
    except BackendError as error:
        hint = missing_run_hint(name, adapter_choice, kitchen.blobs)
        if not hint:
            raise
        raise BackendError(f"{hint}; and as a model: {error}") from error


@contextmanager
def open_on(name: str, kitchen: Kitchen) -> Iterator[OpenWeights]:
    """Find weights with adapters that are built already, which are all needed."""
    hub, blobs = kitchen.hub, kitchen.blobs
    if kitchen.training is None or hub is None or blobs is None:
        raise ConfigError(f"{name}: weights need a training adapter, a hub and a blob store")
    training = kitchen.routed_training()
    weights = find_weights(name, training, blobs)
    with naming_damaged(weights, training, blobs):
        yield OpenWeights(weights, training, hub, blobs)


def resolve_weights(
    typed: str, adapter_choice: AdapterChoice, ports: Sequence[str]
) -> tuple[WeightsName, AdapterChoice]:
    """Parse a name as typed, and complete the choice of adapters at these ports.

    Weights of a run are opened with the run's own adapters, except where others were chosen.
    """
    blobs = open_blobs(adapter_choice)
    typed_name = parse_typed_name(typed, blobs)
    name = resolve_model(typed_name, blobs)
    if name.kind != "run":
        return name, adapter_choice
    order = read_order(blobs, name.name)
    chosen = {
        port: adapter for port, adapter in adapter_choice.names.items() if adapter is not None
    }
    _check_chosen(name, order, chosen, ports)
    recorded = {
        port: adapter
        for port, adapter in order.adapters.items()
        if port in ports and port not in chosen
    }
    check_trusted_adapters(name.name, recorded, trust=adapter_choice.trust)
    names = {**recorded, **chosen}
    used = {
        port: values
        for port, values in order.adapter_settings.items()
        if port in ports and names[port] == order.adapters[port]
    }
    settings = _not_typed(used, adapter_choice)
    check_trusted_settings(name.name, settings, trust=adapter_choice.trust)
    return typed_name, replace(
        adapter_choice,
        names={**adapter_choice.names, **recorded},
        settings=(*_as_typed(settings), *adapter_choice.settings),
    )


def _not_typed(
    recorded: Mapping[str, Mapping[str, Any]], adapter_choice: AdapterChoice
) -> Mapping[str, Mapping[str, Any]]:
    """Return the recorded settings, by port, that the user did not type a value for."""
    typed = {".".join(setting.keys) for setting in from_arguments(adapter_choice.settings)}
    settings = {}
    for port, values in recorded.items():
        keys = [key for key in values if f"{port}.{key}" not in typed]
        settings[port] = {key: values[key] for key in keys}
    return settings


def _as_typed(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for port, values in settings.items():
        for key, value in values.items():
            yield f"{port}.{key}={yaml_value(value)}"


def _check_chosen(
    name: WeightsName, order: Order, chosen: Mapping[str, str], ports: Sequence[str]
) -> None:
    """Raise ConfigError if an adapter must be named, or if the chosen one cannot open weights."""
    for port, reason in order.missing_objects(chosen).items():
        if port in ports:
            raise ConfigError(
                f"{name}: {reason}; name the adapter to use, --{port} NAME, with its settings, "
                f"--set {port}.KEY=VALUE"
            )
    trained_with = order.adapters.get("training")
    if trained_with is None:
        raise ConfigError(
            f"{name}: its record (run.json) names no training adapter (order.adapters.training), "
            "so the run has no weights; if the record was edited, restore it from a copy"
        )
    training = chosen.get("training", trained_with)
    if training != trained_with and "training" not in order.objects:
        adapter_class("training", training)  # raises its own error for an unknown adapter
        raise ConfigError(
            f"{name}: its weights were saved by the training adapter {trained_with!r}, and only "
            "that adapter can open them; omit --training"
        )


def missing_run_hint(name: WeightsName, adapter_choice: AdapterChoice, blobs: BlobStore) -> str:
    """Return a hint if the name of a model may have been meant as a run's; empty otherwise."""
    if name.kind != "hub" or "/" in name.name:
        return ""
    runs = adapter_choice.runs or DEFAULT_RUNS_FOLDER
    return f"there is no run {name.name!r} in {runs}; {did_you_mean(name.name, run_names(blobs))}"


def rendering_settings(record: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the settings by which a run rendered its data; empty if its recipe has none."""
    return record.get("rendering", {}) if record else {}


def prompt_tokens(
    text: str,
    tokenizer: Tokenizer,
    system: str,
    *,
    raw: str,
    chat_template_kwargs: Mapping[str, Any],
) -> Tokens:
    """Return the (T,) tokens of a prompt, rendered by the chat template.

    `raw` is the reason why the template is not used; empty if it is.
    """
    raw = raw or ("" if tokenizer.chat else "the tokenizer of these weights has none")
    if raw and system:
        raise ConfigError(f"--system needs a chat template, and {raw}")
    messages = conversation(system, [{"role": "user", "content": text}])
    if raw:
        tokens = tokenizer.encode(text, special=True)
    else:
        tokens = tokenizer.render(messages, answer=True, chat_template_kwargs=chat_template_kwargs)
    if not len(tokens):
        raise ConfigError("the prompt is empty, and the model has no beginning-of-sequence token")
    return tokens


def conversation(system: str, messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after a system message, if there is one."""
    return [{"role": "system", "content": system}, *messages] if system else list(messages)


def answer_text(tokens: Tokens, tokenizer: Tokenizer) -> str:
    """Decode an answer without the stop token at its end, even if that token is ordinary text."""
    stopped = len(tokens) and tokens[-1] in tokenizer.stop_ids
    return tokenizer.decode(tokens[:-1] if stopped else tokens)

"""Names of weights that requests use: base models, aliases, checkpoints and runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import structlog

from adapters.server.error_texts import public_text
from adapters.server.openai.errors import OpenAIError
from adapters.server.records import CheckpointRecord
from adapters.server.sessions import ServedModel, Sessions
from kitchen.artifacts.registry import model_aliases, model_names, model_versions
from kitchen.artifacts.weights import (
    Weights,
    WeightsName,
    find_weights,
    parse_typed_name,
    saved_tokenizer,
)
from kitchen.errors import ConfigError, CorruptCheckpoint, DataError, did_you_mean
from kitchen.ports.sampling import Tokenizer
from kitchen.runs.store import read_journal, read_run, run_exists, run_names
from kitchen.types import Checkpoint, with_absolute_path

T = TypeVar("T", bound="Tokenizer | None")
_Source: TypeAlias = "str | Checkpoint"
log = structlog.get_logger("kitchen.serve")
TINKER = "tinker://"
OPEN_TOKENIZERS = 32
MAX_NAME = 500  # characters
MAX_RUN_NAME = 200  # with a version; file systems allow 255 in the name of a folder


@runtime_checkable
class KnowsLongestToken(Protocol):
    """A tokenizer that knows how many characters a token has at most."""

    @property
    def longest_token(self) -> int: ...


@dataclass(frozen=True)
class ServedWeights:
    """Weights that can be sampled from, and how they are prompted."""

    name: str  # as the client gave it
    source: str | Checkpoint  # as a training client takes it
    tokenizer: Tokenizer
    base: str  # the training client's name of the base model
    context: int | None  # maximum number of tokens; None if it is not known
    chat_template_kwargs: Mapping[str, Any]  # with which a run was trained
    chat: bool  # whether conversations can be rendered
    # held while the tokenizer is used: encoding may set options that all threads share
    tokenizing: Lock = field(default_factory=Lock)

    @property
    def longest_text(self) -> int | None:
        """Characters; a longer text has too many tokens for the context. None if not known."""
        if self.context is None or not isinstance(self.tokenizer, KnowsLongestToken):
            return None
        return self.context * self.tokenizer.longest_token


@dataclass(frozen=True)
class ListedModel:
    """A name of weights in the list of models."""

    name: str
    base: ServedModel
    created: int = 0  # seconds since 1970; 0 where it is not known


class WeightsNames:
    """Finds weights by name; to be used on any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._blobs = sessions.records.blobs
        # by model or checkpoint, and template; None if a checkpoint has none
        self._tokenizers: OrderedDict[tuple[_Source, str | None], Tokenizer | None] = OrderedDict()
        self._locks: dict[str, Lock] = {}  # of tokenizers, by model
        self._lock = Lock()
        self._digests: dict[str, str | None] = {}  # of base models, when first asked for
        self._digesting = Lock()

    def find(self, name: str) -> ServedWeights:
        """Return weights; raises OpenAIError with status 404 for an unknown name."""
        if len(name) > MAX_NAME:
            short = name[:40]
            raise _not_found(
                f"the model {short!r}... is not served here: its name has {len(name):,} "
                f"characters, and the limit is {MAX_NAME}",
                short,
            )
        if name in self._sessions.models.by_name:
            model = self._sessions.models.by_name[name]
            return self._served(name, model.name, model, {})
        if name.startswith(TINKER):
            return self._saved(name)
        weights = self._of_run(name)
        record = weights.record or {}
        return self._served(
            name, weights.source, self._base(name, weights.model), record.get("rendering", {})
        )

    def sha256(self, weights: ServedWeights) -> str | None:
        """Return the digest of weights; None where it is not known.

        That of a large model takes time, as its files are read once.
        """
        source = weights.source
        if isinstance(source, Checkpoint):
            return source.sha256 or None
        with self._digesting:
            if source not in self._digests:
                self._digests[source] = self._sessions.training.sha256(source)
            return self._digests[source]

    def listed(self) -> Iterator[ListedModel]:
        """Yield base models, checkpoints on this server, and runs and models with weights."""
        models = self._sessions.models.by_name
        for name, model in models.items():
            if name != model.folder:
                yield ListedModel(name, model)
        for record in self._sessions.checkpoints():
            if record.kind != "external_weights" and record.base in models:
                created = int(record.created_at.timestamp())
                yield ListedModel(record.path, models[record.base], created)
        served = self._by_training_name()
        for run, base in self._runs():
            if base in served:
                yield ListedModel(f"run:{run}", served[base])
        for name, base in self._registered():
            if base in served:
                yield ListedModel(f"model:{name}", served[base])

    def _runs(self) -> Iterator[tuple[str, str]]:
        """Yield each run with exported weights, and its base model."""
        for run in run_names(self._blobs):
            try:
                exports = read_journal(self._blobs, run, "checkpoints")
                if any(row.get("policy", True) for row in exports):
                    yield run, str(read_run(self._blobs, run)["facts"].get("model"))
            except ConfigError as error:
                log.warning("a run cannot be listed as a model", run=run, reason=str(error))

    def _registered(self) -> Iterator[tuple[str, str]]:
        """Yield each registered model, and its base model."""
        for name in model_names(self._blobs):
            try:
                yield name, model_versions(self._blobs, name)[-1].base_model
            except (ConfigError, TypeError) as error:  # TypeError: fields of another program
                log.warning("a registered model cannot be listed", model=name, reason=str(error))

    def _by_training_name(self) -> Mapping[str, ServedModel]:
        """Return the models by the names that records of runs may have for them."""
        models = self._sessions.models.by_name.values()
        by_name = {model.name: model for model in models}
        return by_name | {with_absolute_path(model.name): model for model in models}

    def _saved(self, name: str) -> ServedWeights:
        try:
            record = self._sessions.checkpoint_to_sample(name)
        except DataError as error:
            paths = [saved.path for saved in self._sessions.checkpoints()]
            raise _not_found(f"{error}; {did_you_mean(name, paths)}", name) from error
        return self._served(name, record.weights, self._base_of(record), {})

    def _base_of(self, record: CheckpointRecord) -> ServedModel:
        models = self._sessions.models.by_name
        if record.base not in models:
            raise _not_found(
                f"the weights {record.path!r} belong to the model {record.base!r}, which is not "
                f"served here; {did_you_mean(record.base, models)}",
                record.path,
            )
        return models[record.base]

    def _of_run(self, name: str) -> Weights:
        if len(name) > MAX_RUN_NAME:
            raise _not_found(f"the model {name!r} is not served here: its name is too long", name)
        try:
            parsed = parse_typed_name(name, self._blobs)
            self._check_records(parsed)
            if parsed.kind not in ("run", "model"):
                raise _not_found(
                    f"the model {name!r} is not served here; "
                    + did_you_mean(name, [listed.name for listed in self.listed()]),
                    name,
                )
            return find_weights(str(parsed), self._sessions.training, self._blobs)
        except CorruptCheckpoint:
            raise
        except (ConfigError, ValueError) as error:  # ValueError: no run can have this name
            raise _not_found(str(error), name) from error

    def _check_records(self, name: WeightsName) -> None:
        """Raise CorruptCheckpoint if the records of a run or model exist and are damaged."""
        try:
            if name.kind == "run" and run_exists(self._blobs, name.name):
                read_run(self._blobs, name.name)
                read_journal(self._blobs, name.name, "checkpoints")
            elif name.kind == "model" and name.name in model_names(self._blobs):
                model_versions(self._blobs, name.name)
                model_aliases(self._blobs, name.name)
        except (ConfigError, TypeError) as error:
            raise CorruptCheckpoint(str(error)) from error

    def _base(self, name: str, model: str) -> ServedModel:
        """Return the base model of a run by the training client's name for it."""
        served = self._by_training_name()
        if model not in served:
            raise _not_found(
                f"the weights {name!r} belong to the model {model!r}, which is not served here; "
                f"start the server with --model {model}",
                name,
            )
        return served[model]

    def _served(
        self,
        name: str,
        source: str | Checkpoint,
        model: ServedModel,
        rendering: Mapping[str, Any],
    ) -> ServedWeights:
        tokenizer = self._tokenizer(source, model.name, rendering.get("template") or None)
        chat = tokenizer.chat if rendering.get("chat") is None else bool(rendering["chat"])
        return ServedWeights(
            name,
            source,
            tokenizer,
            model.name,
            model.context or tokenizer.context_length,
            dict(rendering.get("chat_template_kwargs", {})),
            chat,
            self._locks.setdefault(model.name, Lock()),
        )

    def _tokenizer(self, source: _Source, model: str, template: str | None) -> Tokenizer:
        """Return the tokenizer of a checkpoint or model, with the template of a run."""
        training = self._sessions.training
        with self._lock:
            own: Tokenizer | None = None
            if isinstance(source, Checkpoint):
                own = self._cached((source, None), lambda: saved_tokenizer(training, source))
            tokenizer = own or self._cached((model, None), lambda: training.tokenizer(model))
            if template is None:
                return tokenizer
            key = (source if own else model, template)
            return self._cached(key, lambda: tokenizer.with_template(template))

    def _cached(self, key: tuple[_Source, str | None], open_: Callable[[], T]) -> T:
        """Return a tokenizer, which stays open while it is one of the last few in use."""
        if key not in self._tokenizers:
            self._tokenizers[key] = open_()
        self._tokenizers.move_to_end(key)
        found = self._tokenizers[key]
        if len(self._tokenizers) > OPEN_TOKENIZERS:
            self._tokenizers.popitem(last=False)
        return cast(T, found)


def _not_found(message: str, name: str) -> OpenAIError:
    """Return the error for a name from a request, without folders of this server."""
    text = public_text(message, given=name)
    return OpenAIError(text, param="model", status=404, code="model_not_found")

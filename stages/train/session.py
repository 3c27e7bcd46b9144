"""Training sessions: opening one on initial weights, and saving the final weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import structlog

from kitchen.artifacts.weights import Weights, find_weights, naming_damaged, parse_weights_name
from kitchen.backend.sampling_router import check_trainable
from kitchen.errors import ConfigError
from kitchen.ports import (
    BlobStore,
    Future,
    ModelCatalog,
    Tokenizer,
    TrainingClient,
    TrainingSession,
    start,
)
from kitchen.ports.training import find_catalog
from kitchen.stage import Need, Stage
from kitchen.types import (
    DEFAULT_ALPHA,
    Checkpoint,
    Facts,
    FullWeights,
    Lora,
    RunId,
    Table,
    Trainable,
)
from stages.train.early_stopping import EarlyStopper
from stages.train.suggested_lr import TrainedModel, plain_alpha

C = TypeVar("C", bound=Checkpoint)

ALL_WEIGHTS = "all weights"  # the fact "trained" of a run without LoRA
_SHAPES = ("lora", "trained")  # facts on the trained weights
_MERGE = (
    "write it as a whole model (kitchen export {} FOLDER --merged), and use path:FOLDER instead"
)

log = structlog.get_logger("stages.train.session")


@dataclass(frozen=True)
class FinalWeights(Checkpoint):
    """The weights at the end of training."""

    final: ClassVar[bool] = True


class OpenSession(Stage):
    """Open a session that trains LoRA weights or all weights, those of run:ID included."""

    model: str
    trainable: Trainable = Lora()
    prefix: str = ""  # prefix of the facts, such as "judge", if the run trains several weights

    def run(
        self, client: TrainingClient, blobs: BlobStore | None = None
    ) -> tuple[TrainingSession, Tokenizer, Facts]:
        initial = self._initial_weights(client, blobs)
        session = client.open(initial.weights.model, initial.trainable)
        try:
            facts = load_initial_weights(session, initial, client, blobs)
            return session, session.tokenizer(), prefix_facts(self.prefix, facts)
        except BaseException:
            session.close()
            raise

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        self._initial_weights(client, blobs, downloads=False)

    def preview(
        self, client: TrainingClient, models: ModelCatalog, blobs: BlobStore | None = None
    ) -> tuple[Tokenizer, TrainedModel, Table]:
        initial = self._initial_weights(client, blobs)
        model, trainable = initial.weights.model, initial.trainable
        alpha, has_lora, is_rslora = None, isinstance(trainable, Lora), False
        if isinstance(trainable, Lora) and "lora_alpha" in client.capabilities:
            alpha, is_rslora = plain_alpha(trainable), trainable.kind == "rslora"
        tokenizer = models.tokenizer(model)
        notes = [("note", note) for note in rendering_notes(initial.weights)]
        table = model_table(model, tokenizer, [*models.notes(model, trainable), *notes])
        trained = TrainedModel(model, models.hidden_size(model), alpha, has_lora, is_rslora)
        return tokenizer, trained, table

    def _initial_weights(
        self, client: TrainingClient, blobs: BlobStore | None, *, downloads: bool = True
    ) -> InitialWeights:
        """Find the initial weights; an error names the part of the run that trains them."""
        try:
            return find_initial_weights(
                self.model, self.trainable, client, blobs, downloads=downloads
            )
        except ConfigError as error:
            if not self.prefix:
                raise
            raise ConfigError(f"{self.prefix}: {error}") from error

    def needs(self) -> Iterable[Need]:
        lora = self.trainable
        if isinstance(lora, FullWeights):
            return [Need(TrainingClient, "full_weights", alternative="set train=lora")]
        is_set = {
            "lora_alpha": lora.alpha not in (None, DEFAULT_ALPHA),
            "lora_dropout": lora.dropout > 0,
            "lora_targets": not (lora.train_attn and lora.train_mlp),
        }
        options = [Need(TrainingClient, name, required=False) for name in is_set if is_set[name]]
        if lora.kind == "lora":
            return options
        kind = Need(TrainingClient, lora.kind, alternative="set lora_kind=lora")
        return [kind, *options]


def model_table(model: str, tokenizer: Tokenizer, notes: Iterable[tuple[str, str]]) -> Table:
    """Return a table of the limits of a model, followed by what a user should know of it."""
    context, known = tokenizer.context_length, tokenizer.model_vocabulary
    rows = [
        ("context, in tokens", "not known" if context is None else f"{context:,}"),
        ("tokens of the model", "not known" if known is None else f"{known:,}"),
        ("tokens of the tokenizer", f"{tokenizer.vocabulary:,}"),
        *notes,
    ]
    return Table(f"The model {model}", ("what", "value"), tuple(rows))


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a session starts from, and those that it trains."""

    weights: Weights
    trainable: Trainable
    of_adapter: bool  # whether alpha and layers are those of an adapter's folder

    @property
    def shape(self) -> Facts:
        """The fact on the trained weights, which must be equal for saved ones to be loaded."""
        if isinstance(self.trainable, FullWeights):
            return Facts({"trained": ALL_WEIGHTS})
        return Facts({"lora": lora_shape(self.trainable, of_adapter=self.of_adapter)})


def find_initial_weights(
    model: str,
    trainable: Trainable,
    client: TrainingClient,
    blobs: BlobStore | None,
    *,
    downloads: bool = True,
) -> InitialWeights:
    """Find the weights to start from; raises ConfigError if a session cannot train them further.

    The session must have the kind and rank of an adapter; alpha and layers are those of the
    adapter. Without `downloads`, only a folder is known to be an adapter.
    """
    check_trainable(model)
    weights = find_weights(model, client, blobs)
    catalog = find_catalog(client)
    adapter = None
    if catalog is not None and (downloads or parse_weights_name(weights.model).kind == "path"):
        adapter = catalog.lora(weights.model)
    if adapter is not None:
        trainable = _continued(weights.model, trainable, adapter)
    initial = InitialWeights(weights, trainable, adapter is not None)
    saved = weights.record["facts"] if weights.record else {}
    _check_saved(weights.name, {key: saved[key] for key in _SHAPES if key in saved}, initial.shape)
    return initial


def _continued(model: str, lora: Trainable, adapter: Lora) -> Lora:
    """Return the configuration by which the training of an adapter continues."""
    if isinstance(lora, FullWeights):
        raise ConfigError(
            f"{model} is a LoRA adapter, and train=full needs a whole model: {_MERGE.format(model)}"
        )
    if adapter.kind != lora.kind:
        raise ConfigError(
            f"{model}: the adapter is of the kind {adapter.kind!r}, but this session "
            f"would train {lora.kind!r}; set lora_kind={adapter.kind}"
        )
    if adapter.rank != lora.rank:
        raise ConfigError(
            f"{model}: the adapter has rank {adapter.rank}, but this session would "
            f"have rank {lora.rank}; set lora_rank={adapter.rank}"
        )
    _check_adapter_settings(model, lora, adapter)
    return replace(lora, alpha=adapter.alpha)


def _check_saved(name: str, saved: Mapping[str, str], shape: Mapping[str, str]) -> None:
    """Raise ConfigError unless a session can load the weights of a run."""
    if saved in ({}, shape):
        return
    if "trained" in saved:
        raise ConfigError(
            f"{name}: all weights of its model were trained, but this session would train LoRA "
            f"weights; {_MERGE.format(name)}, or set train=full"
        )
    if "trained" in shape:
        raise ConfigError(
            f"{name}: its weights are LoRA weights, and train=full needs a whole model; "
            f"{_MERGE.format(name)}"
        )
    raise ConfigError(
        f"{name}: its LoRA weights have {saved['lora']}, but this session would have "
        f"{shape['lora']}; use the settings of that run"
    )


def _check_adapter_settings(model: str, lora: Lora, adapter: Lora) -> None:
    """Raise ConfigError for an alpha that is not the adapter's, and for any choice of layers.

    The default alpha of recipes need not be a choice of the user.
    The adapter's layers are not compared: they need not be all those of attention or of the MLP.
    """
    if lora.alpha not in (None, default_alpha(lora), adapter.alpha):
        raise ConfigError(
            f"{model}: the adapter has alpha {adapter.alpha:g}, but lora_alpha={lora.alpha:g}; "
            "leave lora_alpha out to train with the adapter's own"
        )
    if not (lora.train_attn and lora.train_mlp) or lora.train_unembed:
        raise ConfigError(
            f"{model}: the layers with LoRA weights are those of the adapter; leave lora_layers out"
        )


def load_initial_weights(
    session: TrainingSession,
    initial: InitialWeights,
    client: TrainingClient,
    blobs: BlobStore | None = None,
) -> Facts:
    """Load weights that a run saved, if any, and return the facts that numbers depend on."""
    facts = Facts({**session.facts(), **initial.shape})
    for note in rendering_notes(initial.weights):
        log.warning(note)
    if isinstance(initial.weights.source, Checkpoint):
        with naming_damaged(initial.weights, client, blobs):
            session.load_weights(initial.weights.source).result()
        facts |= initial.weights.facts(client)
    elif initial.of_adapter:
        facts |= initial.weights.facts(client)
        log.info(
            f"training continues from the adapter {initial.weights.name}: {initial.shape['lora']}"
        )
    return facts


def rendering_notes(weights: Weights) -> list[str]:
    """Return a sentence if the run that saved weights had settings which its prompts depend on."""
    recorded = weights.record.get("rendering") if weights.record else None
    defaults: dict[str, object] = {
        "template": None,
        "chat": None,
        "separator": " ",
        "chat_template_kwargs": {},
    }
    names = [
        f"rendering.{name}"
        for name, default in defaults.items()
        if (recorded or {}).get(name, default) != default
    ]
    if not names:
        return []
    return [
        f"{weights.name} was trained with {' and '.join(names)}, which this run does not take "
        "over; give the same settings, or leave them out to change its prompts"
    ]


def prefix_facts(prefix: str, facts: Facts) -> Facts:
    """Prefix the names of facts, "judge.lora", except those of the machine."""
    if not prefix:
        return facts
    return Facts(
        {
            name if name.startswith("machine.") else f"{prefix}.{name}": value
            for name, value in facts.items()
        }
    )


def default_alpha(lora: Lora) -> float:
    """Return the alpha of recipes: twice the rank, and 8 for rsLoRA, as in PEFT.

    At the default rank of 16, both scale the LoRA update by 2. That of rsLoRA falls with √rank.
    """
    return 8.0 if lora.kind == "rslora" else 2.0 * lora.rank


def lora_shape(lora: Lora, *, of_adapter: bool = False) -> str:
    """Describe a LoRA configuration."""
    parts = [part for part in ("attn", "mlp", "unembed") if getattr(lora, f"train_{part}")]
    layers = "of the adapter" if of_adapter else " ".join(parts)
    alpha = "the backend's own" if lora.alpha is None else f"{lora.alpha:g}"
    kind = "" if lora.kind == "lora" else f"{lora.kind}, "
    return f"{kind}rank {lora.rank}, alpha {alpha}, layers {layers}"


class SaveFinal(Stage):
    """Save the final weights, after all optimiser steps submitted so far.

    The fact `stopped_early` says why training stopped before its last step, if it did. A run that
    took no step logs a warning.
    """

    def run(
        self, session: TrainingSession, run: RunId, stopper: EarlyStopper | None = None
    ) -> tuple[Future[FinalWeights], Facts]:
        saved = session.save_weights(f"{run.id}/weights/final", overwrite=True)
        reason = "" if stopper is None else str(stopper.state)
        return start(_final_weights(saved)), Facts({"stopped_early": reason} if reason else {})


async def _final_weights(future: Future[Checkpoint]) -> FinalWeights:
    final = await retype_checkpoint(FinalWeights, future)
    if final.step == 0:
        log.warning(
            "nothing was trained: the run took no optimiser step, so its final weights are the "
            "initial ones. A batch of rollouts gives no step if the rewards are equal within each "
            "group: see frac_constant_groups, and, if truncated is near 1, raise playing.max_tokens"
        )
    return final


async def retype_checkpoint(kind: type[C], future: Future[Checkpoint]) -> C:
    """Await a checkpoint and return it as its subclass `kind`."""
    saved = await future
    return kind(saved.path, saved.step, saved.kind, saved.sha256)

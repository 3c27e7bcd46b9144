"""Training sessions: opening one on initial weights, and saving the final weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import structlog

from kitchen.artifacts.weights import Weights, find_weights
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
from kitchen.stage import Need, Stage
from kitchen.types import Checkpoint, Facts, Lora, RunId
from stages.train.suggested_lr import TrainedModel

C = TypeVar("C", bound=Checkpoint)

log = structlog.get_logger("stages.train.session")


@dataclass(frozen=True)
class FinalWeights(Checkpoint):
    """The weights at the end of training."""

    final: ClassVar[bool] = True


class OpenSession(Stage):
    """Open a session that trains LoRA weights on `model`: new ones, or those of run:ID."""

    model: str
    lora: Lora = Lora()
    prefix: str = ""  # prefix of the facts, such as "judge", if the run trains several weights

    def run(
        self, client: TrainingClient, blobs: BlobStore | None = None
    ) -> tuple[TrainingSession, Tokenizer, Facts]:
        weights = find_initial_weights(self.model, self.lora, client, blobs)
        session = client.open(weights.model, self.lora)
        try:
            facts = load_initial_weights(session, self.lora, weights, client)
            return session, session.tokenizer(), prefix_facts(self.prefix, facts)
        except BaseException:
            session.close()
            raise

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_initial_weights(self.model, self.lora, client, blobs)

    def preview(
        self, client: TrainingClient, models: ModelCatalog, blobs: BlobStore | None = None
    ) -> tuple[Tokenizer, TrainedModel]:
        model = find_initial_weights(self.model, self.lora, client, blobs).model
        alpha = self.lora.alpha if "lora_alpha" in client.capabilities else None
        return models.tokenizer(model), TrainedModel(model, models.hidden_size(model), alpha)

    def needs(self) -> Iterable[Need]:
        is_set = {"lora_alpha": self.lora.alpha is not None, "lora_dropout": self.lora.dropout}
        return [Need(TrainingClient, name, required=False) for name in is_set if is_set[name]]


def find_initial_weights(
    model: str, lora: Lora, client: TrainingClient, blobs: BlobStore | None
) -> Weights:
    """Find the weights to start from; raises ConfigError if their LoRA configuration differs."""
    weights = find_weights(model, client, blobs)
    saved_shape = weights.record["facts"].get("lora", "") if weights.record else ""
    if saved_shape not in ("", lora_shape(lora)):
        raise ConfigError(
            f"{weights.name}: its LoRA weights have {saved_shape}, but this session would have "
            f"{lora_shape(lora)}; use the settings of that run"
        )
    return weights


def load_initial_weights(
    session: TrainingSession, lora: Lora, weights: Weights, client: TrainingClient
) -> Facts:
    """Load weights that a run saved, if any, and return the facts that numbers depend on."""
    facts = Facts({**session.facts(), "lora": lora_shape(lora)})
    if isinstance(weights.source, Checkpoint):
        session.load_weights(weights.source).result()
        facts |= weights.facts(client)
    return facts


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


def lora_shape(lora: Lora) -> str:
    """Describe the LoRA configuration, which must be equal for saved weights to be loaded."""
    layers = [part for part in ("attn", "mlp", "unembed") if getattr(lora, f"train_{part}")]
    alpha = "the backend's own" if lora.alpha is None else f"{lora.alpha:g}"
    return f"rank {lora.rank}, alpha {alpha}, layers {' '.join(layers)}"


class SaveFinal(Stage):
    """Save the final weights, after all optimiser steps submitted so far.

    A run that took no step logs a warning.
    """

    def run(self, session: TrainingSession, run: RunId) -> Future[FinalWeights]:
        saved = session.save_weights(f"{run.id}/weights/final", overwrite=True)
        return start(_final_weights(saved))


async def _final_weights(future: Future[Checkpoint]) -> FinalWeights:
    final = await retype_checkpoint(FinalWeights, future)
    if final.step == 0:
        log.warning(
            "nothing was learnt: the run took no optimiser step, so its final weights are the "
            "initial ones. A batch of rollouts gives no step if the rewards are equal within each "
            "group: see frac_constant_groups, and truncated for answers that were cut off"
        )
    return final


async def retype_checkpoint(kind: type[C], future: Future[Checkpoint]) -> C:
    """Await a checkpoint and return it as its subclass `kind`."""
    saved = await future
    return kind(saved.path, saved.step, saved.kind, saved.sha256)

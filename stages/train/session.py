"""Open a session, and save what it has learnt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

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


@dataclass(frozen=True)
class FinalWeights(Checkpoint):
    """Weights as they are when training is over."""

    final: ClassVar[bool] = True


class OpenSession(Stage):
    """Start training LoRA weights on `model`: fresh ones, or, where it is run:ID, those of that
    run.
    """

    model: str
    lora: Lora = Lora()
    # "judge", "critic": whose facts these are, where the run has other weights of its own
    whose: str = ""

    def run(
        self, client: TrainingClient, blobs: BlobStore | None = None
    ) -> tuple[TrainingSession, Tokenizer, Facts]:
        weights = find_initial_weights(self.model, self.lora, client, blobs)
        session = client.open(weights.model, self.lora)
        try:
            return (
                session,
                session.tokenizer(),
                with_role(self.whose, load_initial_weights(session, self.lora, weights, client)),
            )
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
        wanted = {"lora_alpha": self.lora.alpha is not None, "lora_dropout": self.lora.dropout}
        return [
            Need(TrainingClient, name, must=False) for name, set_here in wanted.items() if set_here
        ]


def find_initial_weights(
    model: str, lora: Lora, client: TrainingClient, blobs: BlobStore | None
) -> Weights:
    """What is trained on; raises ConfigError where the weights of a run have another shape."""
    weights = find_weights(model, client, blobs)
    was = weights.record["facts"].get("lora", "") if weights.record else ""
    if was not in ("", lora_shape(lora)):
        raise ConfigError(
            f"{weights.name}: its weights are LoRA of {was}, and this session would have "
            f"{lora_shape(lora)}; set what that run had"
        )
    return weights


def load_initial_weights(
    session: TrainingSession, lora: Lora, weights: Weights, client: TrainingClient
) -> Facts:
    """What numbers depend on, once the weights of a run, if it is one, are in the session."""
    facts = Facts({**session.facts(), "lora": lora_shape(lora)})
    if isinstance(weights.source, Checkpoint):
        session.load_weights(weights.source).result()
        facts |= weights.facts(client)
    return facts


def with_role(role: str, facts: Facts) -> Facts:
    """Under names of its own, but for those of the machine"""
    return Facts(
        {
            name if not role or name.startswith("machine.") else f"{role}.{name}": value
            for name, value in facts.items()
        }
    )


def lora_shape(lora: Lora) -> str:
    """What weights must have in common for one to be loaded as the other."""
    layers = [part for part in ("attn", "mlp", "unembed") if getattr(lora, f"train_{part}")]
    alpha = "the backend's own" if lora.alpha is None else f"{lora.alpha:g}"
    return f"rank {lora.rank}, alpha {alpha}, layers {' '.join(layers)}"


class SaveFinal(Stage):
    """Export the weights as they are after the steps submitted so far."""

    def run(self, session: TrainingSession, run: RunId) -> Future[FinalWeights]:
        return start(
            retype_checkpoint(
                FinalWeights, session.save_weights(f"{run.id}/weights/final", overwrite=True)
            )
        )


async def retype_checkpoint(kind: type[C], future: Future[Checkpoint]) -> C:
    """The checkpoint under a type of its own."""
    saved = await future
    return kind(saved.path, saved.step, saved.kind, saved.sha256)

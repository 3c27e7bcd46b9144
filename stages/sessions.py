"""Open a session, and save what it has learnt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from kitchen.errors import ConfigError
from kitchen.ports import BlobStore, Future, Tokenizer, TrainingClient, TrainingSession, start
from kitchen.stage import Need, Stage
from kitchen.types import Checkpoint, Facts, Lora, RunId
from kitchen.weights import Weights, find_weights

C = TypeVar("C", bound=Checkpoint)


@dataclass(frozen=True)
class FinalWeights(Checkpoint):
    """Weights as they are when training is over."""


class OpenSession(Stage):
    """Start training LoRA weights on `model`: fresh ones, or, where it is run:ID, those of that run."""

    model: str
    lora: Lora = Lora()

    def run(self, client: TrainingClient, blobs: BlobStore | None = None) -> tuple[TrainingSession, Tokenizer, Facts]:
        weights = self._find(client, blobs)
        session, facts = client.open(weights.model, self.lora), Facts({"lora": shape(self.lora)})
        try:
            if isinstance(weights.source, Checkpoint):
                session.load_weights(weights.source).result()
                facts |= {"weights": weights.name, "weights.sha256": weights.source.sha256}
            return session, session.tokenizer(), Facts({**session.facts(), **facts})
        except BaseException:
            session.close()
            raise

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        self._find(client, blobs)

    def preview(self, client: TrainingClient, blobs: BlobStore | None = None) -> Tokenizer:
        return client.tokenizer(self._find(client, blobs).model)

    def _find(self, client: TrainingClient, blobs: BlobStore | None) -> Weights:
        """Raises ConfigError where the weights of a run have another shape."""
        weights = find_weights(self.model, client, blobs)
        was = weights.record["facts"].get("lora", "") if weights.record else ""
        if was not in ("", shape(self.lora)):
            raise ConfigError(f"{weights.name}: its weights are LoRA of {was}, and this session would have "
                              f"{shape(self.lora)}; set what that run had")
        return weights

    def needs(self) -> Iterable[Need]:
        if self.lora.alpha is not None:
            yield Need(TrainingClient, "lora_alpha", must=False)
        if self.lora.dropout:
            yield Need(TrainingClient, "lora_dropout", must=False)


def shape(lora: Lora) -> str:
    """What weights must have in common for one to be loaded as the other."""
    layers = [part for part in ("attn", "mlp", "unembed") if getattr(lora, f"train_{part}")]
    alpha = "the backend's own" if lora.alpha is None else f"{lora.alpha:g}"
    return f"rank {lora.rank}, alpha {alpha}, layers {' '.join(layers)}"


class SaveFinal(Stage):
    """Export the weights as they are after the steps submitted so far."""

    def run(self, session: TrainingSession, run: RunId) -> Future[FinalWeights]:
        return start(saved_as(FinalWeights, session.save_weights(f"{run.id}/weights/final", overwrite=True)))


async def saved_as(kind: type[C], future: Future[Checkpoint]) -> C:
    """The checkpoint under a type of its own."""
    saved = await future
    return kind(saved.path, saved.step, saved.kind, saved.sha256)

"""Open a session, and save what it has learnt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from kitchen.ports import Future, Tokenizer, TrainingClient, TrainingSession, start
from kitchen.stage import Need, Stage
from kitchen.types import Checkpoint, Facts, Lora, RunId

C = TypeVar("C", bound=Checkpoint)


@dataclass(frozen=True)
class FinalWeights(Checkpoint):
    """Weights as they are when training is over."""


class OpenSession(Stage):
    """Start training fresh LoRA weights on `model`."""

    model: str
    lora: Lora = Lora()

    def run(self, client: TrainingClient) -> tuple[TrainingSession, Tokenizer, Facts]:
        session = client.open(self.model, self.lora)
        return session, session.tokenizer(), session.facts()

    def verify(self, client: TrainingClient) -> None:
        client.find(self.model)

    def preview(self, client: TrainingClient) -> Tokenizer:
        return client.tokenizer(self.model)

    def needs(self) -> Iterable[Need]:
        if self.lora.alpha is not None:
            yield Need(TrainingClient, "lora_alpha", must=False)
        if self.lora.dropout:
            yield Need(TrainingClient, "lora_dropout", must=False)


class SaveFinal(Stage):
    """Export the weights as they are after the steps submitted so far."""

    def run(self, session: TrainingSession, run: RunId) -> Future[FinalWeights]:
        return start(saved_as(FinalWeights, session.save_weights(f"{run.id}/weights/final", overwrite=True)))


async def saved_as(kind: type[C], future: Future[Checkpoint]) -> C:
    """The checkpoint under a type of its own."""
    saved = await future
    return kind(saved.path, saved.step, saved.kind, saved.sha256)

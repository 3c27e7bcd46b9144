"""Weights exported along the way: the last few and the best."""

from __future__ import annotations

from dataclasses import dataclass

from kitchen.ports import CheckpointStore, Future, TrainingSession, start
from kitchen.progress import Progress
from kitchen.stage import Stage
from kitchen.types import Checkpoint, Metrics, RunId
from stages.evaluate.evaluation import HeldOutLoss
from stages.train.session import retype_checkpoint


@dataclass(frozen=True)
class ExportedWeights(Checkpoint):
    """Weights as they were at some step."""


@dataclass(frozen=True)
class SavedExports:
    """The exports that are still there."""

    weights: tuple[ExportedWeights, ...] = ()  # oldest first
    best: ExportedWeights | None = None
    best_loss: float = float("inf")  # nats per held-out token


class ExportWeights(Stage):
    """Export the weights in the middle of training, under the number of the step."""

    def run(
        self, session: TrainingSession, run: RunId, progress: Progress
    ) -> Future[ExportedWeights]:
        where = f"{run.id}/weights/step-{progress.step + 1:06d}"
        return start(
            retype_checkpoint(ExportedWeights, session.save_weights(where, overwrite=True))
        )


class HeldOutMetrics(Metrics):
    """Metrics of held-out rows, by whose loss the best export is chosen."""

    selects_by = "held_out_loss"


class StartExports(Stage):
    """Nothing is exported yet."""

    def run(self) -> SavedExports:
        return SavedExports()


class TrackBestExport(Stage):
    """Keep the last `last` exports and the one with the lowest held-out loss; delete the others.

    Without a CheckpointStore, nothing is deleted.
    """

    last: int

    def run(
        self,
        kept: SavedExports,
        weights: ExportedWeights,
        loss: HeldOutLoss,
        checkpoints: CheckpointStore | None = None,
    ) -> tuple[SavedExports, HeldOutMetrics]:
        better = loss.nats < kept.best_loss
        best, best_loss = (weights, loss.nats) if better else (kept.best, kept.best_loss)
        there = (*(w for w in kept.weights if w.path != weights.path), weights)
        stay = {w.path for w in there[-self.last :]} | ({best.path} if best else set())
        for old in there:
            if checkpoints is not None and old.path not in stay:
                checkpoints.delete(old)
        return SavedExports(
            tuple(w for w in there if w.path in stay), best, best_loss
        ), HeldOutMetrics(
            {f"held_out_{name}": value for name, value in loss.metrics.items()},
            held_out_loss=loss.nats,
            best_held_out_loss=best_loss,
        )

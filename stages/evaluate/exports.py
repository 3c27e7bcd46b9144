"""Exports of the weights during training; the latest and the best are kept, others deleted."""

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
    """Weights exported during training."""


@dataclass(frozen=True)
class SavedExports:
    """The exports that were not deleted."""

    weights: tuple[ExportedWeights, ...] = ()  # oldest first
    best: ExportedWeights | None = None
    best_loss: float = float("inf")  # held-out loss of `best`


class ExportWeights(Stage):
    """Export the weights during training, named after the step."""

    def run(
        self, session: TrainingSession, run: RunId, progress: Progress
    ) -> Future[ExportedWeights]:
        path = f"{run.id}/weights/step-{progress.step + 1:06d}"
        saved = session.save_weights(path, overwrite=True)
        return start(retype_checkpoint(ExportedWeights, saved))


class HeldOutMetrics(Metrics):
    """Metrics of held-out rows; the export with the lowest held-out loss is the best."""

    selects_by = "held_out_loss"


class StartExports(Stage):
    """Start with no exports."""

    def run(self) -> SavedExports:
        return SavedExports()


class TrackBestExport(Stage):
    """Keep the latest exports and the one with the lowest held-out loss, and delete the others.

    Only exports in the folder of the new one are deleted: those before it come from a save point,
    which may name the weights of another run. Without a CheckpointStore, nothing is deleted.
    """

    last: int  # number of latest exports to keep

    def run(
        self,
        exports: SavedExports,
        weights: ExportedWeights,
        held_out: HeldOutLoss,
        checkpoints: CheckpointStore | None = None,
    ) -> tuple[SavedExports, HeldOutMetrics]:
        best, best_loss = exports.best, exports.best_loss
        if held_out.loss < best_loss:
            best, best_loss = weights, held_out.loss
        everything = (*(old for old in exports.weights if old.path != weights.path), weights)
        paths_to_keep = {export.path for export in everything[-self.last :]}
        if best is not None:
            paths_to_keep.add(best.path)
        own = weights.path.rpartition("/")[0] + "/"
        for export in everything:
            is_stale = export.path not in paths_to_keep and export.path.startswith(own)
            if checkpoints is not None and is_stale:
                checkpoints.delete(export)
        remaining = tuple(export for export in everything if export.path in paths_to_keep)
        metrics = {f"held_out_{name}": value for name, value in held_out.metrics.items()}
        return SavedExports(remaining, best, best_loss), HeldOutMetrics(
            metrics, held_out_loss=held_out.loss, best_held_out_loss=best_loss
        )

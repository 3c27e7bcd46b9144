"""Exports of the weights during training; the latest and the best are kept, others deleted."""

from __future__ import annotations

from dataclasses import dataclass

from kitchen.ports import CheckpointStore, Future, TrainingSession, start
from kitchen.progress import Progress
from kitchen.stage import Stage
from kitchen.types import Checkpoint, Loss, Metrics, RunId
from stages.evaluate.selection import BestConfig, HeldOutMeasures
from stages.train.session import retype_checkpoint


@dataclass(frozen=True)
class ExportedWeights(Checkpoint):
    """Weights exported during training."""


@dataclass(frozen=True)
class SavedExports:
    """The exports that were not deleted."""

    weights: tuple[ExportedWeights, ...] = ()  # oldest first
    best: ExportedWeights | None = None
    best_value: float | None = None  # of the metric that selects `best`


class ExportWeights(Stage):
    """Export the weights during training, named after the step."""

    def run(
        self, session: TrainingSession, run: RunId, progress: Progress
    ) -> Future[ExportedWeights]:
        path = f"{run.id}/weights/step-{progress.step + 1:06d}"
        saved = session.save_weights(path, overwrite=True)
        return start(retype_checkpoint(ExportedWeights, saved))


class StartExports(Stage):
    """Start with no exports."""

    def run(self) -> SavedExports:
        return SavedExports()


class TrackBestExport(Stage):
    """Keep the latest exports and the one with the best metric, and delete the others.

    Only exports in the folder of the new one are deleted: those before it come from a save point,
    which may name the weights of another run. Without a CheckpointStore, nothing is deleted.
    """

    last: int  # number of latest exports to keep
    config: BestConfig = BestConfig()
    # the loss of the evaluations; its attribute `measures` names what they measure, if it is known
    loss: str | Loss | None = "cross_entropy"

    def __post_init__(self) -> None:
        measures = ("loss",) if isinstance(self.loss, str) else getattr(self.loss, "measures", ())
        if measures:
            self.config.check(measures)

    def run(
        self,
        exports: SavedExports,
        weights: ExportedWeights,
        held_out: HeldOutMeasures,
        checkpoints: CheckpointStore | None = None,
    ) -> tuple[SavedExports, Metrics]:
        best, best_value = exports.best, exports.best_value
        value = self.config.value(held_out)
        if self.config.gain(value, best_value) > 0:
            best, best_value = weights, value
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
        return SavedExports(remaining, best, best_value), self._metrics(held_out, best_value)

    def _metrics(self, held_out: HeldOutMeasures, best_value: float | None) -> Metrics:
        """Return the measures, the best value so far, and by which metric it is the best."""
        metrics = Metrics(held_out.published())
        if best_value is not None:
            metrics[f"best_{self.config.metric}"] = best_value
        metrics.selects_by = self.config.metric
        metrics.greater_is_better = self.config.maximised
        return metrics

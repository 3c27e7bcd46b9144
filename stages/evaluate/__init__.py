"""Held-out evaluation: answers, losses, KL divergence and intermediate exports."""

from stages.evaluate.bad_rows import DropBadMixtureRows, DropBadQuestions, DropBadRows
from stages.evaluate.before_after import CompareEvaluations, QualityGate
from stages.evaluate.checkpoint_eval import EvaluateCheckpoint, LoadHeldOut, ReportEvaluation
from stages.evaluate.early_stopping import (
    EarlyStopping,
    export_or_stop,
    start_exports,
    until_stopped,
)
from stages.evaluate.epoch_losses import EpochLosses, StartEpochLosses, TrackEpochLoss
from stages.evaluate.evaluation import (
    DecodingConfig,
    EvalConfig,
    EvaluateBase,
    EvaluateWeights,
    EvaluationAfter,
    EvaluationBefore,
    HeldOutData,
    MeasureHeldOut,
    RenderHeldOut,
)
from stages.evaluate.exports import (
    ExportedWeights,
    ExportWeights,
    SavedExports,
    TrackBestExport,
)
from stages.evaluate.kl import MeasureKL, MeasureKLBefore
from stages.evaluate.monitor import MonitorConfig, MonitorHeldOut, monitor_held_out
from stages.evaluate.reference import IdentifyWeights, OpenReference, Reference
from stages.evaluate.rubric_metric import OpenMetricJudge, metric_judge
from stages.evaluate.selection import BestConfig, HeldOutMeasures, HeldOutStage
from stages.evaluate.targets import TargetResult, Targets

__all__ = [
    "BestConfig",
    "CompareEvaluations",
    "DecodingConfig",
    "DropBadMixtureRows",
    "DropBadQuestions",
    "DropBadRows",
    "EarlyStopping",
    "EpochLosses",
    "EvalConfig",
    "EvaluateBase",
    "EvaluateCheckpoint",
    "EvaluateWeights",
    "EvaluationAfter",
    "EvaluationBefore",
    "ExportWeights",
    "ExportedWeights",
    "HeldOutData",
    "HeldOutMeasures",
    "HeldOutStage",
    "IdentifyWeights",
    "LoadHeldOut",
    "MeasureHeldOut",
    "MeasureKL",
    "MeasureKLBefore",
    "MonitorConfig",
    "MonitorHeldOut",
    "OpenMetricJudge",
    "OpenReference",
    "QualityGate",
    "Reference",
    "RenderHeldOut",
    "ReportEvaluation",
    "SavedExports",
    "StartEpochLosses",
    "TargetResult",
    "Targets",
    "TrackBestExport",
    "TrackEpochLoss",
    "export_or_stop",
    "metric_judge",
    "monitor_held_out",
    "start_exports",
    "until_stopped",
]

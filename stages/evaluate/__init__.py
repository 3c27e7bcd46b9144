"""Held-out evaluation: answers, losses, KL divergence and intermediate exports."""

from stages.evaluate.before_after import Compare, QualityGate
from stages.evaluate.checkpoint_eval import ExamineWeights, LoadHeldOut, ReportExamination
from stages.evaluate.evaluation import (
    After,
    Before,
    DecodingConfig,
    EvalConfig,
    EvaluateBase,
    EvaluateWeights,
    HeldOutData,
    HeldOutLoss,
    MeasureHeldOut,
    RenderHeldOut,
)
from stages.evaluate.kept_exports import Exported, ExportWeights, KeepBest, Kept, StartKeeping
from stages.evaluate.kl import MeasureKL, MeasureKLBefore
from stages.evaluate.reference import IdentifyWeights, OpenReference, Reference

__all__ = [
    "After",
    "Before",
    "Compare",
    "DecodingConfig",
    "EvalConfig",
    "EvaluateBase",
    "EvaluateWeights",
    "ExamineWeights",
    "ExportWeights",
    "Exported",
    "HeldOutData",
    "HeldOutLoss",
    "IdentifyWeights",
    "KeepBest",
    "Kept",
    "LoadHeldOut",
    "MeasureHeldOut",
    "MeasureKL",
    "MeasureKLBefore",
    "OpenReference",
    "QualityGate",
    "Reference",
    "RenderHeldOut",
    "ReportExamination",
    "StartKeeping",
]

"""Preference optimisation: comparisons, pairs, DPO and KTO."""

from stages.preference.bad_rows import DropBadComparisons, DropBadLabelledAnswers
from stages.preference.comparisons import (
    LoadComparisons,
    MistakesConfig,
    Pairs,
    RenderPairs,
    SampledRejections,
    SampleRejectedAnswers,
)
from stages.preference.dpo_losses import PairLoss, PairLossName
from stages.preference.kto import KtoLoss, LoadLabelledAnswers, RenderLabelledAnswers
from stages.preference.pair_stages import (
    PAIRS,
    AttachReferenceLogprobs,
    EvaluatePairs,
    HeldOutPairs,
    PairData,
    PrecomputeReferenceLogprobs,
    ShuffledPairs,
    reference_stages,
)

__all__ = [
    "PAIRS",
    "AttachReferenceLogprobs",
    "DropBadComparisons",
    "DropBadLabelledAnswers",
    "EvaluatePairs",
    "HeldOutPairs",
    "KtoLoss",
    "LoadComparisons",
    "LoadLabelledAnswers",
    "MistakesConfig",
    "PairData",
    "PairLoss",
    "PairLossName",
    "Pairs",
    "PrecomputeReferenceLogprobs",
    "RenderLabelledAnswers",
    "RenderPairs",
    "SampleRejectedAnswers",
    "SampledRejections",
    "ShuffledPairs",
    "reference_stages",
]

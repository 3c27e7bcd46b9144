"""Preference optimisation: comparisons, pairs, DPO and KTO."""

from stages.preference.comparisons import (
    LoadComparisons,
    OwnMistakes,
    Pairs,
    RenderPairs,
    WriteMistakes,
)
from stages.preference.dpo import (
    HeldOutPairs,
    JoinReference,
    JudgePairs,
    PairData,
    ScoreReference,
    ShuffledPairs,
)
from stages.preference.kto import LabelLoss, LoadLabels, RenderLabels
from stages.preference.pair_loss import PairLoss, PairLossName

__all__ = [
    "HeldOutPairs",
    "JoinReference",
    "JudgePairs",
    "LabelLoss",
    "LoadComparisons",
    "LoadLabels",
    "OwnMistakes",
    "PairData",
    "PairLoss",
    "PairLossName",
    "Pairs",
    "RenderLabels",
    "RenderPairs",
    "ScoreReference",
    "ShuffledPairs",
    "WriteMistakes",
]

"""Judges: reward models trained on comparisons, and the rewards that they give."""

from stages.judge.asked_judge import OpenAskedJudge, judge_steps
from stages.judge.held_out_preference import MeasurePreference
from stages.judge.judge import Judge, JudgeConfig, JudgeWeights
from stages.judge.judge_rewards import (
    CompareByJudge,
    EvaluateBaseJudge,
    EvaluateJudge,
    JudgeRollouts,
)
from stages.judge.judge_training import (
    BuildJudgePairs,
    BuildJudgeQuestions,
    CheckReadable,
    OpenJudge,
    SaveJudge,
    train_judge,
)
from stages.judge.ranked_answers import (
    BuildComparisons,
    LoadPreferences,
    RankAnswers,
    RankingConfig,
    comparison_source,
)

__all__ = [
    "BuildComparisons",
    "BuildJudgePairs",
    "BuildJudgeQuestions",
    "CheckReadable",
    "CompareByJudge",
    "EvaluateBaseJudge",
    "EvaluateJudge",
    "Judge",
    "JudgeConfig",
    "JudgeRollouts",
    "JudgeWeights",
    "LoadPreferences",
    "MeasurePreference",
    "OpenAskedJudge",
    "OpenJudge",
    "RankAnswers",
    "RankingConfig",
    "SaveJudge",
    "comparison_source",
    "judge_steps",
    "train_judge",
]

"""Judges: reward models trained on comparisons, and the rewards that they give."""

from stages.judge.judge import Judge, JudgeWeights, Judging
from stages.judge.judge_rewards import JudgePlayed, JudgeRollouts, MeasureJudge, MeasureJudgeBefore
from stages.judge.judge_training import (
    AskBothWays,
    CheckReadable,
    OpenJudge,
    PairAnswers,
    SaveJudge,
)
from stages.judge.ranked_answers import CompareAnswers, LoadPreferences, RankAnswers, Ranking

__all__ = [
    "AskBothWays",
    "CheckReadable",
    "CompareAnswers",
    "Judge",
    "JudgePlayed",
    "JudgeRollouts",
    "JudgeWeights",
    "Judging",
    "LoadPreferences",
    "MeasureJudge",
    "MeasureJudgeBefore",
    "OpenJudge",
    "PairAnswers",
    "RankAnswers",
    "Ranking",
    "SaveJudge",
]

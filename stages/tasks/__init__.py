"""Problems with a reward: questions, games and reasoning-gym tasks."""

from stages.tasks.games import MakeGames
from stages.tasks.grading import GradingConfig
from stages.tasks.gym_options import GymSetting
from stages.tasks.open_rubric_judge import OpenRubricJudge
from stages.tasks.reasoning_gym import MakeReasoningGym
from stages.tasks.reward_setting import RewardSetting
from stages.tasks.rewards import Prompt, Question, Reward
from stages.tasks.rubric import Criterion, RubricConfig
from stages.tasks.sources import LoadTaskMixture, ProblemSources
from stages.tasks.tasks import (
    CheckPrompts,
    DropBadTasks,
    LoadTasks,
    TaskBatch,
    TaskBatches,
    Tasks,
    checked_prompts,
)

__all__ = [
    "CheckPrompts",
    "Criterion",
    "DropBadTasks",
    "GradingConfig",
    "GymSetting",
    "LoadTaskMixture",
    "LoadTasks",
    "MakeGames",
    "MakeReasoningGym",
    "OpenRubricJudge",
    "ProblemSources",
    "Prompt",
    "Question",
    "Reward",
    "RewardSetting",
    "RubricConfig",
    "TaskBatch",
    "TaskBatches",
    "Tasks",
    "checked_prompts",
]

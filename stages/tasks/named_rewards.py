"""Rewards by name: built-in ones and users' functions, alone or several with weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kitchen.config.user_functions import is_function_name
from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports import Dataset
from kitchen.ports.datasets import Row
from stages.chat.conversations import Conversation, parse_conversation
from stages.chat.items import item_digest
from stages.chat.prompts import graded_prefill, prefill_text, reference_answers
from stages.tasks.function_workers import FunctionPool
from stages.tasks.grading import GradingConfig
from stages.tasks.own_reward import (
    RewardFunction,
    RowReward,
    find_reward,
    parse_for_functions,
    parse_question,
    row_rewards,
)
from stages.tasks.reward_setting import RewardSetting, reward_weights
from stages.tasks.rewards import MAY_HANG, REWARDS, Question, RewardPart, RewardSum
from stages.tasks.rubric import RUBRIC
from stages.tasks.rubric_judge import RubricReward
from stages.tasks.subprocesses import WorkerPool

RowRewards = Mapping[str, RowReward]  # the functions' rewards of one row, by name


@dataclass(frozen=True)
class NamedRewards:
    """The rewards that a setting names: a function, a rubric, or several rewards."""

    weights: Mapping[str, float]  # of each reward, by name
    functions: Mapping[str, RewardFunction]  # those that are functions of the user
    summed: bool  # whether the reward is their weighted sum

    @property
    def built_in(self) -> Sequence[str]:
        """The names of the rewards that compare an answer with the reference answer."""
        return [name for name in self.weights if name not in (RUBRIC, *self.functions)]

    def parse(self, row: Row, where: str) -> Conversation:
        """Parse a row; it needs no answer if all rewards are functions."""
        parse: Callable[[Row, str], Conversation] = (
            parse_conversation if self.built_in else parse_question
        )
        return parse_for_functions(self.functions.values(), row, where, parse)

    def of_rows(self, data: Dataset, workers: FunctionPool) -> Sequence[RowRewards]:
        """Return the functions' rewards of each row, by name."""
        columns = [row_rewards(function, data, workers) for function in self.functions.values()]
        return [
            dict(zip(self.functions, rewards, strict=True))
            for rewards in (zip(*columns, strict=True) if columns else [()] * len(data))
        ]

    def question(
        self, question: Question, row: Conversation, own: RowRewards, workers: WorkerPool
    ) -> Question:
        """Return the question of a row with these rewards."""
        question = replace(question, rubric=self._rubric(row, question.grading))
        if not self.summed and own:
            [reward] = own.values()
            return replace(
                question,
                reward=reward,
                other_answers=(),
                prefill=prefill_text(row),
                item=item_digest(question.item, reward.arguments),
            )
        read = {name: dict(reward.arguments) for name, reward in own.items()}
        parts = [
            self._part(name, weight, row, own.get(name), question.grading, workers)
            for name, weight in self.weights.items()
            if name != RUBRIC
        ]
        return replace(
            question,
            reward=RewardSum(tuple(parts)),
            other_answers=reference_answers(row)[1:] if self.built_in else (),
            prefill="",
            item=item_digest(question.item, read) if read else question.item,
        )

    def _rubric(self, row: Conversation, grading: GradingConfig) -> RubricReward | None:
        """Return the reward of a row by the rubric, if there is one."""
        if RUBRIC not in self.weights:
            return None
        references = tuple(filter(None, reference_answers(row)))
        grading = grading_of(RUBRIC, grading)
        weight = self.weights[RUBRIC]
        return RubricReward(weight, self.summed, references, prefill_text(row), grading)

    def _part(
        self,
        name: str,
        weight: float,
        row: Conversation,
        own: RowReward | None,
        grading: GradingConfig,
        workers: WorkerPool,
    ) -> RewardPart:
        """Return one of several rewards of a row."""
        grading = grading_of(name, grading)
        if own is not None:
            return RewardPart(name, weight, own, grading, None, prefill_text(row))
        pool = workers if name in MAY_HANG else None
        return RewardPart(name, weight, REWARDS[name], grading, pool, graded_prefill(row))


def grading_of(name: str, grading: GradingConfig) -> GradingConfig:
    """Return the options that affect one of several rewards; only `exact` compares texts."""
    if name == "exact":
        return grading
    return replace(grading, ignore_case=False, ignore_punctuation=False)


def find_rewards(setting: RewardSetting) -> NamedRewards | None:
    """Return the rewards of a setting; None for a single built-in one, or one chosen by the data.

    Raises ConfigError for a name that is neither one of REWARDS, `rubric`, nor a function that can
    be called.
    """
    weights = reward_weights(setting)
    for name in weights:
        if not is_function_name(name) and name not in (RUBRIC, *REWARDS):
            near = did_you_mean(name, (RUBRIC, *REWARDS))
            raise ConfigError(f"reward={name!r} is unknown; {near} (or a MODULE:function)")
    functions = {name: find_reward(name) for name in weights if is_function_name(name)}
    summed = not isinstance(setting, str)
    if not (functions or RUBRIC in weights or (weights and summed)):
        return None
    return NamedRewards(weights, functions, summed)

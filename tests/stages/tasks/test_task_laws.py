"""The laws of tasks hold for all built-in tasks, and find violations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult, Task
from kitchen.testing.environments import ODD_ANSWERS, TaskLaws
from stages.chat.tools import ToolQuestion
from stages.data.splits import DataConfig
from stages.tasks.games import Guess
from stages.tasks.reasoning_gym import MakeReasoningGym
from stages.tasks.rewards import REWARDS, Prompt, Question

ASKED: tuple[Message, ...] = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "?"},
)


class TestExact(TaskLaws):
    answers = ("yes", *ODD_ANSWERS)

    def task(self) -> Task:
        return Question(ASKED, "yes", REWARDS["exact"], "t")


class TestFields(TaskLaws):
    answers = ('{"a": 1}', '{"a": 2}', *ODD_ANSWERS)

    def task(self) -> Task:
        return Question(ASKED, '{"a": 1}', REWARDS["field_f1"], "t")


class TestMath(TaskLaws):
    answers = ("it is $\\frac12$", *ODD_ANSWERS)

    def task(self) -> Task:
        return Question(ASKED, "0.5", REWARDS["math"], "t")


class TestPrompt(TaskLaws):
    def task(self) -> Task:
        return Prompt(ASKED)


class TestGuess(TaskLaws):
    answers = ("3", "8", "5", *ODD_ANSWERS)

    def task(self) -> Task:
        return Guess(1, 10, 5)


class TestTools(TaskLaws):
    answers = (
        '<tool_call>{"name": "calculator", "arguments": {"expression": "2 + 3"}}</tool_call>',
        '{"name": "no such tool", "arguments": {}}',
        "5",
        *ODD_ANSWERS,
    )

    def task(self) -> Task:
        return ToolQuestion("What is 2 + 3?", "5", "t")


@pytest.fixture(scope="module")  # its worker process takes seconds to start
def gym_problem() -> Iterator[Task]:
    pytest.importorskip("reasoning_gym")
    tasks, _, _ = MakeReasoningGym(
        "reasoning-gym:chain_sum", DataConfig(limit=1, held_out_rows=1)
    ).run()
    with closing(tasks):
        yield tasks.train[0]


class TestGym(TaskLaws):
    answers = ("<answer>12</answer>", "<answer></answer>", *ODD_ANSWERS)

    @pytest.fixture
    def problem(self, gym_problem: Task) -> Task:
        return gym_problem


@dataclass
class Forgetful:
    """Shares one Env between all rollouts."""

    tag: str = "t"
    answers: list[str] = field(default_factory=list)

    def env(self) -> Env:
        return self

    async def reset(self) -> Sequence[Message]:
        return ASKED

    async def step(self, answer: str) -> StepResult:
        self.answers.append(answer)
        return StepResult(float(len(self.answers)), ASKED[1:] if len(self.answers) < 3 else ())


@dataclass
class Drawn:
    """Asks another problem each time."""

    tag: str = "t"
    numbers: Any = field(default_factory=itertools.count)

    def env(self) -> Env:
        return Prompt(({"role": "user", "content": f"{next(self.numbers)}?"},))


class Answered(Prompt):
    """Ends at once."""

    async def reset(self) -> Sequence[Message]:
        return [*ASKED, {"role": "assistant", "content": "!"}]


class Picky(Prompt):
    """Accepts only numbers."""

    async def step(self, answer: str) -> StepResult:
        return StepResult(float(int(answer)))


@pytest.mark.parametrize(
    ("task", "law"),
    [
        (Forgetful(), "test_rollouts_do_not_affect_each_other"),
        (Forgetful(), "test_equal_answers_get_equal_rewards"),
        (Drawn(), "test_every_rollout_gets_the_same_messages"),
        (Answered(()), "test_it_starts_with_messages_to_answer"),
        (Prompt(()), "test_it_starts_with_messages_to_answer"),
    ],
)
def test_law_violations_are_found(task: Task, law: str) -> None:
    with pytest.raises(AssertionError):
        getattr(TaskLaws(), law)(task)


def test_env_that_rejects_some_text_is_found() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        TaskLaws().test_every_text_is_an_answer(Picky(ASKED), "½ cup")
    with pytest.raises(NotImplementedError, match=r"def task\(self\) -> Task"):
        TaskLaws().task()

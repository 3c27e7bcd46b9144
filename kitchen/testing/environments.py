"""The laws of every problem that answers are rewarded for: subclass `TaskLaws`, say in `task` how
to make one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from kitchen.ports import Message
from kitchen.ports.environments import StepResult, Task

STRANGE = ("", " \n", "42", "{", "<tool_call>", "½ cup", "\0", "9" * 400, "no " * 400)
ROLES = {"system", "user", "assistant", "tool"}


class TaskLaws:
    """Whoever plays it is asked the same, no rollout knows of another, and every text is an answer."""

    answers: Sequence[str] = STRANGE  # add good ones, turn by turn

    def task(self) -> Task:
        raise NotImplementedError(
            f"{type(self).__name__} must say which problem the laws are for:\n"
            "    def task(self) -> Task:\n"
            "        return MyTask(...)"
        )

    @pytest.fixture
    def problem(self) -> Task:
        return self.task()

    def test_it_has_a_tag(self, problem: Task) -> None:
        assert isinstance(problem.tag, str)

    def test_it_begins_with_a_conversation_that_is_to_be_answered(self, problem: Task) -> None:
        said = begun(problem)
        assert said, "there is nothing to answer"
        assert said[-1]["role"] != "assistant", "the answer is there already"
        _check(said)

    def test_every_rollout_is_asked_the_same(self, problem: Task) -> None:
        first = begun(problem)
        played(problem, self.answers)
        assert begun(problem) == first

    @pytest.mark.parametrize("answer", STRANGE)
    def test_every_text_is_an_answer(self, problem: Task, answer: str) -> None:
        [turn] = played(problem, [answer])
        assert math.isfinite(turn.reward)
        assert isinstance(turn.parsed, bool)
        _check(turn.messages)

    def test_the_same_answers_are_worth_the_same(self, problem: Task) -> None:
        """Each of them as the first, and one after the other until it is over."""
        for answers in ([each] for each in self.answers):
            assert played(problem, answers) == played(problem, answers)
        assert played(problem, self.answers) == played(problem, self.answers)

    def test_no_rollout_knows_of_another(self, problem: Task) -> None:
        alone = played(problem, self.answers)
        beside = asyncio.run(_side_by_side(problem, self.answers, len(alone)))
        assert beside == [alone, alone]


def begun(task: Task) -> Sequence[Message]:
    """What is said first."""
    return list(asyncio.run(_begun(task)))


async def _begun(task: Task) -> Sequence[Message]:
    return await task.env().reset()


def played(task: Task, answers: Sequence[str]) -> list[StepResult]:
    """What is said to these answers, one after the other, until it is over."""
    return asyncio.run(_played(task, answers))


async def _played(task: Task, answers: Sequence[str]) -> list[StepResult]:
    env, turns = task.env(), list[StepResult]()
    await env.reset()
    for answer in answers:
        turns.append(await env.step(answer))
        if not turns[-1].messages:
            break
    return turns


async def _side_by_side(task: Task, answers: Sequence[str], turns: int) -> list[list[StepResult]]:
    """Two rollouts, turn by turn."""
    envs = [task.env(), task.env()]
    for env in envs:
        await env.reset()
    said = [[await env.step(answer) for env in envs] for answer in answers[:turns]]
    return [list(each) for each in zip(*said, strict=True)]


def _check(messages: Sequence[Message]) -> None:
    for each in messages:
        assert each["role"] in ROLES
        assert isinstance(each["content"], str)

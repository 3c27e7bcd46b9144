"""Laws of tasks: subclass `TaskLaws` and return one from `task`."""

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
    """Rollouts get the same messages, do not affect each other, and may answer with any text."""

    answers: Sequence[str] = STRANGE  # add good ones, result by result

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
        messages = first_messages(problem)
        assert messages, "there is nothing to answer"
        assert messages[-1]["role"] != "assistant", "the answer is there already"
        _check(messages)

    def test_every_rollout_is_asked_the_same(self, problem: Task) -> None:
        first = first_messages(problem)
        attempt(problem, self.answers)
        assert first_messages(problem) == first

    @pytest.mark.parametrize("answer", STRANGE)
    def test_every_text_is_an_answer(self, problem: Task, answer: str) -> None:
        [result] = attempt(problem, [answer])
        assert math.isfinite(result.reward)
        assert isinstance(result.parsed, bool)
        _check(result.messages)

    def test_the_same_answers_are_worth_the_same(self, problem: Task) -> None:
        """Each answer as the first, and all of them one after the other."""
        for answers in ([each] for each in self.answers):
            assert attempt(problem, answers) == attempt(problem, answers)
        assert attempt(problem, self.answers) == attempt(problem, self.answers)

    def test_no_rollout_knows_of_another(self, problem: Task) -> None:
        alone = attempt(problem, self.answers)
        beside = asyncio.run(_side_by_side(problem, self.answers, len(alone)))
        assert beside == [alone, alone]


def first_messages(task: Task) -> Sequence[Message]:
    """Return the first messages of a new rollout."""
    return list(asyncio.run(_first_messages(task)))


async def _first_messages(task: Task) -> Sequence[Message]:
    return await task.env().reset()


def attempt(task: Task, answers: Sequence[str]) -> list[StepResult]:
    """Return the results of these answers, given one after the other until the end."""
    return asyncio.run(_attempt(task, answers))


async def _attempt(task: Task, answers: Sequence[str]) -> list[StepResult]:
    env, results = task.env(), list[StepResult]()
    await env.reset()
    for answer in answers:
        results.append(await env.step(answer))
        if not results[-1].messages:
            break
    return results


async def _side_by_side(task: Task, answers: Sequence[str], results: int) -> list[list[StepResult]]:
    """Return the results of two rollouts that take turns."""
    envs = [task.env(), task.env()]
    for env in envs:
        await env.reset()
    by_answer = [[await env.step(answer) for env in envs] for answer in answers[:results]]
    return [list(each) for each in zip(*by_answer, strict=True)]


def _check(messages: Sequence[Message]) -> None:
    for each in messages:
        assert each["role"] in ROLES
        assert isinstance(each["content"], str)

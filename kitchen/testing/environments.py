"""Laws of tasks: subclass `TaskLaws` and return one from `task`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from kitchen.ports import Message
from kitchen.ports.environments import StepResult, Task

ODD_ANSWERS = ("", " \n", "42", "{", "<tool_call>", "½ cup", "\0", "9" * 400, "no " * 400)
ROLES = {"system", "user", "assistant", "tool"}


class TaskLaws:
    """Rollouts get the same messages, do not affect each other, and accept any text as answer."""

    # answers to a rollout, in order; add good ones, at least one for each kind of result
    answers: Sequence[str] = ODD_ANSWERS

    def task(self) -> Task:
        """Return the problem under test."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which task the laws are for:\n"
            "    def task(self) -> Task:\n"
            "        return MyTask(...)"
        )

    @pytest.fixture
    def problem(self) -> Task:
        return self.task()

    def test_it_has_a_tag(self, problem: Task) -> None:
        assert isinstance(problem.tag, str)

    def test_it_starts_with_messages_to_answer(self, problem: Task) -> None:
        messages = first_messages(problem)
        assert messages, "there is nothing to answer"
        assert messages[-1]["role"] != "assistant", "the answer is there already"
        _check_messages(messages)

    def test_every_rollout_gets_the_same_messages(self, problem: Task) -> None:
        first = first_messages(problem)
        attempt(problem, self.answers)
        assert first_messages(problem) == first

    @pytest.mark.parametrize("answer", ODD_ANSWERS)
    def test_every_text_is_an_answer(self, problem: Task, answer: str) -> None:
        [result] = attempt(problem, [answer])
        assert result.reward is None or math.isfinite(result.reward)
        assert isinstance(result.parsed, bool)
        _check_messages(result.messages)

    def test_equal_answers_get_equal_rewards(self, problem: Task) -> None:
        """Try each answer as the first, and all of them one after the other."""
        for answer in self.answers:
            assert attempt(problem, [answer]) == attempt(problem, [answer])
        assert attempt(problem, self.answers) == attempt(problem, self.answers)

    def test_rollouts_do_not_affect_each_other(self, problem: Task) -> None:
        alone = attempt(problem, self.answers)
        interleaved = asyncio.run(_two_rollouts(problem, self.answers, len(alone)))
        assert interleaved == [alone, alone]


def first_messages(task: Task) -> Sequence[Message]:
    """Return the first messages of a new rollout."""
    return list(asyncio.run(_first_messages(task)))


async def _first_messages(task: Task) -> Sequence[Message]:
    return await task.env().reset()


def attempt(task: Task, answers: Sequence[str]) -> list[StepResult]:
    """Return the results of these answers, given one after the other until the rollout ends."""
    return asyncio.run(_attempt(task, answers))


async def _attempt(task: Task, answers: Sequence[str]) -> list[StepResult]:
    env, results = task.env(), list[StepResult]()
    await env.reset()
    for answer in answers:
        results.append(await env.step(answer))
        if not results[-1].messages:
            break
    return results


async def _two_rollouts(task: Task, answers: Sequence[str], results: int) -> list[list[StepResult]]:
    """Return the results of two rollouts that take turns."""
    envs = [task.env(), task.env()]
    for env in envs:
        await env.reset()
    rollouts: list[list[StepResult]] = [[], []]
    for answer in answers[:results]:
        for env, rollout in zip(envs, rollouts, strict=True):
            rollout.append(await env.step(answer))
    return rollouts


def _check_messages(messages: Sequence[Message]) -> None:
    for message in messages:
        assert message["role"] in ROLES
        assert isinstance(message["content"], str)

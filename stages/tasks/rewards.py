"""Questions with a reference answer, and reward functions that compare answers with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec

from kitchen.errors import ConfigError, DataError
from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult
from stages.tasks.json_score import exact_match, score_json
from stages.tasks.math_grader import math_reward
from stages.tasks.subprocesses import WorkerPool, call_in_subprocess

Reward = Callable[[str, str], StepResult]  # takes an answer and the reference answer
MAX_CONCURRENT = 4  # answers graded at the same time, each in a process
GRADING_TIMEOUT = 30.0  # seconds per answer


@dataclass(frozen=True)
class Question:
    """A Task of one question with one reference answer."""

    messages: tuple[Message, ...]
    answer: str
    reward: Reward  # a module-level function if there are workers
    tag: str
    workers: WorkerPool | None = None  # for a reward that may hang; None to compute it here

    def env(self) -> Env:
        return _QuestionEnv(self)


@dataclass(frozen=True)
class _QuestionEnv:
    question: Question

    async def reset(self) -> Sequence[Message]:
        return self.question.messages

    async def step(self, answer: str) -> StepResult:
        question = self.question
        if question.workers is None:
            return question.reward(answer, question.answer)
        return await grade_in_subprocess(question.workers, question.reward, answer, question.answer)


@dataclass(frozen=True)
class Prompt:
    """A Task of one question without a reward; it is its own Env."""

    messages: tuple[Message, ...]
    tag: str = ""

    def env(self) -> Env:
        return self

    async def reset(self) -> Sequence[Message]:
        return self.messages

    async def step(self, answer: str) -> StepResult:
        return StepResult(0.0)


def field_f1_reward(answer: str, reference: str) -> StepResult:
    """Return F1 over the fields of two JSON objects, 0..1."""
    score = score_json(answer, reference)
    return StepResult(score.f1, parsed=score.parsed)


def exact_reward(answer: str, reference: str) -> StepResult:
    """Return 1 if the texts are equal, ignoring white space around them, else 0."""
    return StepResult(float(exact_match(answer, reference)))


# a program may add its own reward under another name, before it makes a recipe
REWARDS: dict[str, Reward] = {
    "field_f1": field_f1_reward,
    "exact": exact_reward,
    "math": math_reward,
}
MAY_HANG = frozenset({"math"})  # 9**9**9 is a formula


async def grade_in_subprocess(
    workers: WorkerPool, reward: Reward, answer: str, reference: str
) -> StepResult:
    """Compute a reward in a worker process, which is killed if the caller is cancelled."""
    result = await workers.call(reward, answer, reference)
    return StepResult(result["reward"], parsed=result["parsed"])


async def grade_answers(
    reward: str, pairs: Sequence[tuple[str, str]], timeout: float = GRADING_TIMEOUT
) -> list[StepResult | str]:
    """Grade pairs of answer and reference: each gets a result, or the reason why it has none.

    Only a reward that may hang can have no result: it took more than `timeout` seconds, or its
    process ended. The others raise DataError for a reference that nothing can be compared with.
    """
    if reward not in MAY_HANG:
        return [REWARDS[reward](*pair) for pair in pairs]
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def grade(workers: WorkerPool, answer: str, reference: str) -> StepResult | str:
        try:
            async with slots, asyncio.timeout(timeout):
                return await grade_in_subprocess(workers, REWARDS[reward], answer, reference)
        except TimeoutError:
            return f"grading took more than {timeout:g} s"
        except (OSError, RuntimeError) as error:
            return f"{error}"

    with closing(WorkerPool()) as workers:
        return list(await asyncio.gather(*(grade(workers, *pair) for pair in pairs)))


def first_ungradable(reward: str, references: Sequence[str]) -> tuple[int, str] | None:
    """Return index and reason of the first reference that cannot be compared even with itself."""
    if reward in MAY_HANG:
        problem: tuple[int, str] | None = call_in_subprocess(_ungradable, reward, references)
        return problem
    return _ungradable(reward, references)


def _ungradable(reward: str, references: Sequence[str]) -> tuple[int, str] | None:
    for index, reference in enumerate(references):
        try:
            REWARDS[reward](reference, reference)
        except DataError as error:
            return index, str(error)
    return None


def require_extra(package: str, needed_by: str) -> None:
    """Raise ConfigError, with the install command, if a package of the extra `rl` is missing."""
    if find_spec(package) is None:
        raise ConfigError(
            f"{needed_by} needs {package.replace('_', '-')}, which is not installed: "
            "pip install 'crucible-kitchen[rl]'"
        )

"""Questions with one right answer, and what answers to them are worth."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

from kitchen.errors import ConfigError, DataError
from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult
from stages.tasks.json_score import exact_match, score_json
from stages.tasks.subprocesses import WorkerPool, call_in_subprocess

Reward = Callable[[str, str], StepResult]  # of an answer, and of the one that is right
MAX_CONCURRENT = 4  # answers that are compared in processes
GRADING_TIMEOUT = 30.0  # seconds that one may take


@dataclass(frozen=True)
class Question:
    """One question with one right answer; a Task."""

    messages: tuple[Message, ...]
    right: str
    reward: Reward  # with processes a function of a module
    tag: str
    processes: WorkerPool | None = None  # where to compute the reward if that may hang; None: here

    def env(self) -> Env:
        return _Asked(self)


@dataclass(frozen=True)
class _Asked:
    question: Question

    async def reset(self) -> Sequence[Message]:
        return self.question.messages

    async def step(self, answer: str) -> StepResult:
        asked = self.question
        if asked.processes is None:
            return asked.reward(answer, asked.right)
        return await grade_in_subprocess(asked.processes, asked.reward, answer, asked.right)


@dataclass(frozen=True)
class Prompt:
    """A question whose answer is not judged; a Task, and the Env of it."""

    messages: tuple[Message, ...]
    tag: str = ""

    def env(self) -> Env:
        return self

    async def reset(self) -> Sequence[Message]:
        return self.messages

    async def step(self, answer: str) -> StepResult:
        return StepResult(0.0)


def field_f1_reward(answer: str, right: str) -> StepResult:
    """F1 over the fields of two JSON objects, 0..1."""
    score = score_json(answer, right)
    return StepResult(score.f1, parsed=score.parsed)


def exact_reward(answer: str, right: str) -> StepResult:
    """1 for the same text, white space around it aside."""
    return StepResult(float(exact_match(answer, right)))


def math_reward(answer: str, right: str) -> StepResult:
    """1 for an equal number or formula, by math-verify; of a text with #### what follows the last
    counts.

    Parsed is an answer in which there is a number or a formula. Raises DataError if there is none
    in the right one.
    """
    from math_verify import parse, verify

    def read(text: str) -> list[object]:
        """No limit of time: theirs needs the main thread, and whoever waits has one."""
        return list(parse(text, parsing_timeout=None))

    gold = right.rpartition("####")[2].strip()
    # a formula, and not words around one
    bare = not re.search(r"\$|\\boxed|(?<![\\a-zA-Z])[a-zA-Z]{2}", gold)
    if not (wanted := read(f"${gold}$" if bare else gold)):
        raise DataError(
            f"{gold[:80]!r} has no number or formula, so answers cannot be compared with it as "
            "mathematics"
        )
    given = read(answer.rpartition("####")[2])
    return StepResult(float(verify(wanted, given, timeout_seconds=None)), parsed=bool(given))


REWARDS: Mapping[str, Reward] = MappingProxyType(
    {"field_f1": field_f1_reward, "exact": exact_reward, "math": math_reward}
)
MAY_HANG = frozenset({"math"})  # 9**9**9 is a formula


async def grade_in_subprocess(
    processes: WorkerPool, reward: Reward, answer: str, right: str
) -> StepResult:
    """In a process, which ends if nobody waits for it any longer."""
    came = await processes.call(reward, answer, right)
    return StepResult(came["reward"], parsed=came["parsed"])


async def grade_answers(reward: str, pairs: Sequence[tuple[str, str]]) -> list[StepResult | str]:
    """What answers are worth, each with the one that is right; or why the two could not be
    compared.

    That is known of rewards that may hang alone, whose comparison takes more than LIMIT seconds or
    ends its process. The others raise DataError for a right answer that nothing can be compared
    with.
    """
    if reward not in MAY_HANG:
        return [REWARDS[reward](*pair) for pair in pairs]
    free = asyncio.Semaphore(MAX_CONCURRENT)

    async def one(processes: WorkerPool, answer: str, right: str) -> StepResult | str:
        try:
            async with free, asyncio.timeout(GRADING_TIMEOUT):
                return await grade_in_subprocess(processes, REWARDS[reward], answer, right)
        except TimeoutError:
            return f"it took more than {GRADING_TIMEOUT:g} s"
        except (OSError, RuntimeError) as error:
            return f"{error}"

    with closing(WorkerPool()) as processes:
        return list(await asyncio.gather(*(one(processes, *pair) for pair in pairs)))


def first_ungradable(reward: str, rights: Sequence[str]) -> tuple[int, str] | None:
    """Which right answer is the first that the reward cannot compare even with itself, and why."""
    return (
        call_in_subprocess(_unreadable, reward, rights)
        if reward in MAY_HANG
        else _unreadable(reward, rights)
    )


def _unreadable(reward: str, rights: Sequence[str]) -> tuple[int, str] | None:
    for at, right in enumerate(rights):
        try:
            REWARDS[reward](right, right)
        except DataError as error:
            return at, str(error)
    return None


def require_extra(package: str, wanted_by: str) -> None:
    """Raise ConfigError, with the command that mends it, if a package of the extra `rl` is missing."""
    if find_spec(package) is None:
        raise ConfigError(
            f"{wanted_by} needs {package.replace('_', '-')}, not installed here: "
            "pip install 'crucible-kitchen[rl]'"
        )

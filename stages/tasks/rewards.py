"""Questions with a reference answer, and reward functions that compare answers with it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import iscoroutinefunction
from itertools import starmap
from typing import Any

from kitchen.errors import ConfigError, DataError
from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult, Task
from kitchen.ports.sampling import ToolSchema
from kitchen.types import Tokens
from stages.chat.template import NO_INPUTS, TemplateInputs
from stages.tasks.grading import GradingConfig
from stages.tasks.json_score import exact_match, score_json
from stages.tasks.math_grader import math_reward
from stages.tasks.own_reward import RowReward
from stages.tasks.reward_setting import RewardSetting, reward_weights
from stages.tasks.rubric_judge import RubricReward
from stages.tasks.step_results import (
    call_function,
    check_no_messages,
    check_reward,
    check_step_result,
    function_name,
)
from stages.tasks.subprocesses import WorkerEnded, WorkerPool, call_each_in_subprocess

# takes an answer and the reference answer; it may be a coroutine function
Reward = Callable[[str, str], StepResult | Awaitable[StepResult]]
MAX_CONCURRENT = 4  # answers graded at the same time, each in a process
GRADING_TIMEOUT = 30.0  # seconds per answer
CHECK_TIMEOUT = 60.0  # seconds per row, whose references are compared with themselves
AS_IS = GradingConfig()


@dataclass(frozen=True)
class Question:
    """A Task of one question with a reference answer."""

    messages: tuple[Message, ...]
    answer: str
    # a module-level function if there are workers
    reward: Reward | RowReward | RewardSum
    tag: str
    workers: WorkerPool | None = None  # for a reward that may hang; None to compute it here
    other_answers: tuple[str, ...] = ()  # which are right, too
    grading: GradingConfig = AS_IS
    where: str = field(default="", compare=False)  # its place in the data, for messages
    inputs: TemplateInputs = NO_INPUTS  # tools and variables for the chat template
    prefill: str = ""  # the text before an answer that the reward is to see
    item: str = field(default="", compare=False)  # the item of its row, if it has one
    # columns of its row, by which comparisons of evaluations may group items
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    rubric: RubricReward | None = None  # a reward that a judge completes, once `step` has returned

    def env(self) -> Env:
        return _QuestionEnv(self)


def judged_questions(tasks: Iterable[Task]) -> Iterator[Question]:
    """Iterate over the questions that are rewarded by a rubric."""
    return (task for task in tasks if isinstance(task, Question) and task.rubric is not None)


def judge_prompts(question: Question) -> list[Tokens]:
    """Return the judge's prompts about an empty answer, one per criterion, each (T,)."""
    if question.rubric is None:
        return []
    return question.rubric.prompts(question.messages, question.inputs)


@dataclass(frozen=True)
class _QuestionEnv:
    question: Question

    @property
    def tools(self) -> Sequence[ToolSchema]:
        return self.question.inputs.tools

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any]:
        return self.question.inputs.kwargs

    async def reset(self) -> Sequence[Message]:
        return self.question.messages

    async def step(self, answer: str) -> StepResult:
        question = self.question
        references = (question.answer, *question.other_answers)
        answer = question.prefill + answer
        if isinstance(question.reward, RewardSum):
            return await question.reward.score(answer, references)
        return await grade(question.reward, answer, references, question.grading, question.workers)


@dataclass(frozen=True)
class RewardPart:
    """One of several rewards of a question."""

    name: str
    weight: float
    reward: Reward | RowReward
    grading: GradingConfig = AS_IS
    workers: WorkerPool | None = None  # for a reward that may hang; None to compute it here
    prefill: str = ""  # the text before an answer that the reward is to see

    async def score(self, answer: str, references: Sequence[str]) -> StepResult:
        """Return the reward of an answer, without its weight; a function has one reference."""
        if isinstance(self.reward, RowReward):
            references = references[:1]
        text = self.prefill + answer
        result = await grade(self.reward, text, references, self.grading, self.workers)
        return check_no_messages(result, f"{self.name}, one of several rewards,")


@dataclass(frozen=True)
class RewardSum:
    """The weighted sum of several rewards of a question."""

    parts: tuple[RewardPart, ...]

    async def score(self, answer: str, references: Sequence[str]) -> StepResult:
        """Return the weighted sum of the rewards of an answer, without those that abstain.

        They are computed one after another. The sum is None if all of them abstain, or there are
        none, as with a rubric alone. The parts of a
        reward are parts of the sum, as NAME/PART.
        """
        rewards: dict[str, float] = {}
        total = 0.0
        parsed = abstained = True
        for part in self.parts:
            result = await part.score(answer, references)
            parsed = parsed and result.parsed
            rewards |= {f"{part.name}/{name}": value for name, value in result.parts.items()}
            if result.reward is not None:
                abstained = False
                rewards[part.name] = result.reward
                total += part.weight * result.reward
        reward = None if abstained else check_reward(total, "the weighted sum of rewards")
        return StepResult(reward, parsed=parsed, parts=rewards)


@dataclass(frozen=True)
class Prompt:
    """A Task of one question without a reward; it is its own Env."""

    messages: tuple[Message, ...]
    tag: str = ""
    where: str = field(default="", compare=False)  # its place in the data, for messages
    inputs: TemplateInputs = NO_INPUTS  # tools and variables for the chat template

    @property
    def tools(self) -> Sequence[ToolSchema]:
        return self.inputs.tools

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any]:
        return self.inputs.kwargs

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


_QUICK = frozenset({field_f1_reward, exact_reward, math_reward})  # called without a thread
BUILT_IN = frozenset(REWARDS)  # a right answer is worth 1 as an answer to itself


async def grade(
    reward: Reward | RowReward,
    answer: str,
    references: Sequence[str],
    grading: GradingConfig,
    workers: WorkerPool | None = None,
) -> StepResult:
    """Compute the reward of an answer by its best reference, in a worker process if there are any.

    The process is killed if the caller is cancelled.
    """
    text = grading.extracted(answer)
    if text is None:
        return StepResult(0.0, parsed=False)
    text = grading.folded(text)
    results = [
        await _grade_by(reward, text, reference, workers)
        for reference in map(grading.reference, references)
    ]
    return max(results, key=_reward_or_less)  # the first of equal ones


def _reward_or_less(result: StepResult) -> float:
    return -math.inf if result.reward is None else result.reward


async def _grade_by(
    reward: Reward | RowReward, text: str, reference: str, workers: WorkerPool | None
) -> StepResult:
    """Compute the reward by one reference; raises WrongResult for a result of another type."""
    if isinstance(reward, RowReward):
        return await reward.score(text, reference)
    if workers is not None:
        result = await workers.call(reward, text, reference)
        if isinstance(result, dict) and {"reward", "parsed"} <= result.keys():
            result = StepResult(result["reward"], parsed=result["parsed"])
    elif reward in _QUICK:
        result = reward(text, reference)
    else:
        result = await call_function(reward, text, reference)
    return check_step_result(result, function_name(reward))


async def grade_answers(
    reward: str,
    pairs: Sequence[tuple[str, Sequence[str]]],
    timeout: float = GRADING_TIMEOUT,
    grading: GradingConfig = AS_IS,
) -> list[StepResult | str]:
    """Grade answers by their references: each gets a result, or the reason why it has none.

    Only a reward that may hang can have no result: it took more than `timeout` seconds, or its
    process ended. The others raise DataError for a reference that nothing can be compared with.
    """
    if reward not in MAY_HANG:
        return [await grade(REWARDS[reward], *pair, grading) for pair in pairs]
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def one(workers: WorkerPool, answer: str, references: Sequence[str]) -> StepResult | str:
        try:
            async with slots, asyncio.timeout(timeout):
                return await grade(REWARDS[reward], answer, references, grading, workers)
        except TimeoutError:
            return f"grading took more than {timeout:g} s"
        except (OSError, RuntimeError) as error:
            return f"{error}"

    with closing(WorkerPool()) as workers:
        return list(await asyncio.gather(*(one(workers, *pair) for pair in pairs)))


def first_ungradable(
    reward: str, references: Sequence[Sequence[str]], grading: GradingConfig = AS_IS
) -> tuple[int, str] | None:
    """Return index and reason of the first row with a reference that is not right by itself."""
    return next(iter(ungradable(reward, references, grading, count=1).items()), None)


def ungradable(
    reward: str,
    references: Sequence[Sequence[str]],
    grading: GradingConfig = AS_IS,
    count: int | None = None,
    timeout: float = CHECK_TIMEOUT,
) -> Mapping[int, str]:
    """Return indices and reasons of rows with a reference that is not right by itself, in order.

    At most `count` rows are searched for; None for all. A row that takes more than `timeout`
    seconds is one of them.
    """
    prepared = [list(map(grading.reference, row)) for row in references]
    empty: dict[int, str] = {}
    for index, row in enumerate(prepared):
        for text, original in zip(row, references[index], strict=True):
            if original.strip() and not text.strip():
                empty[index] = f"nothing is left of {original[:80]!r} to compare answers with"
    if empty and count == 1:
        return empty
    others = [index for index in range(len(prepared)) if index not in empty]
    problems = dict(empty)
    with closing(_reasons(reward, [prepared[index] for index in others], timeout)) as reasons:
        for index, reason in zip(others, reasons, strict=True):
            if reason:
                problems[index] = reason
                if count is not None and len(problems) >= count:
                    break
    return dict(sorted(problems.items()))


def _reasons(
    reward: str, rows: Sequence[Sequence[str]], timeout: float
) -> Generator[str | None, None, None]:
    """Yield why each row cannot be graded; None if it can."""
    calls = [(reward, references) for references in rows]
    if reward not in MAY_HANG:
        yield from starmap(_why_ungradable, calls)
        return
    results = call_each_in_subprocess(_why_ungradable, calls, timeout, (reward, ["1"]))
    for references, reason in zip(rows, results, strict=True):
        if isinstance(reason, TimeoutError):
            reason = f"comparing {references[0][:80]!r} with itself takes more than {timeout:g} s"
        elif isinstance(reason, RuntimeError | WorkerEnded):
            reason = f"{references[0][:80]!r} cannot be compared with itself: {reason}"
        yield reason


def _why_ungradable(reward: str, references: Sequence[str]) -> str | None:
    function = REWARDS[reward]
    for reference in () if iscoroutinefunction(function) else references:
        try:
            result = function(reference, reference)
        except DataError as error:
            return str(error)
        if reward in BUILT_IN and getattr(result, "reward", 1) != 1:
            return f"{reference[:80]!r} is not worth 1 as an answer to itself"
    return None


def check_grading(grading: GradingConfig, reward: RewardSetting) -> None:
    """Raise ConfigError for options that have no effect on a reward; None is chosen by the data."""
    names = reward_weights(reward)
    if options := grading.text_options() if names and "exact" not in names else {}:
        name = next(iter(options))
        reward = ", ".join(names)
        raise ConfigError(
            f"grading.{name}=true only affects comparisons of texts, and not reward={reward}: "
            f"choose reward=exact, or leave {name} out"
        )


def require_extra(package: str, needed_by: str) -> None:
    """Raise ConfigError, with the install command, if a package of the extra `rl` is missing."""
    if find_spec(package) is None:
        raise ConfigError(
            f"{needed_by} needs {package.replace('_', '-')}, which is not installed: "
            "pip install 'crucible-kitchen[rl]'"
        )

"""Rollouts: a policy answers a problem turn by turn, and its environment rewards the answers."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain, repeat
from typing import Annotated, TypeVar

import numpy as np
import structlog
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from kitchen.backend.work import gather_counted
from kitchen.errors import DataError, KitchenError, RunFailed, describe_error, exits_as_failures
from kitchen.ports import (
    Future,
    Message,
    Sampler,
    Tokenizer,
    TrainingClient,
    TrainingSession,
    arrival,
    start,
)
from kitchen.ports.environments import Env, StepResult, Task
from kitchen.progress import Progress
from kitchen.stage import Need, Stage
from kitchen.types import (
    Array,
    Datum,
    Floats,
    Mask,
    Metrics,
    Price,
    Sampled,
    Samples,
    Table,
    Tokens,
)
from stages.chat.model_limits import has_room
from stages.chat.prompts import env_inputs, render_prompt
from stages.chat.stop_texts import StopTexts
from stages.chat.template import DEFAULT_RENDERING, PromptRendering
from stages.chat.token_cost import generation_cost_rows
from stages.chat.token_table import MarkedTokens, token_table
from stages.evaluate.reference import MAX_SEED, spawn_seeds
from stages.tasks.asked_model import Judgement
from stages.tasks.judge_records import judge_metrics, recorded_judgements
from stages.tasks.rewards import Prompt, Question
from stages.tasks.rubric_cost import judge_cost_rows
from stages.tasks.rubric_judge import RubricReward, Verdict
from stages.tasks.step_results import open_env, reset_env, step_env
from stages.tasks.subprocesses import WorkerEnded
from stages.tasks.tasks import PlannedTasks, TaskBatch, place_of, question_tokens
from stages.tasks.time_limit import TimeLimit, TookTooLong

T = TypeVar("T")

log = structlog.get_logger("stages.rl.rollouts")

# a datum to train on, and the number of its tokens that the policy sampled
TrainingExample = tuple[Datum, int]

MAX_TOKENS = "playing.max_tokens"
MAX_SECONDS = "playing.max_seconds"

# rewards that differ by less are equal: sums in another order differ by some 1e-16 of their terms
REWARD_REL_TOL = 1e-12  # of the larger one
REWARD_ABS_TOL = 1e-14  # for terms that cancel out


class StopReason(StrEnum):
    """The reason why a rollout ended."""

    DONE = "done"  # the environment ended it
    MAX_TURNS = "max_turns"  # it was ended after max_turns answers
    FAILED = "failed"  # the environment raised an error, or the prompt became too long


@dataclass(frozen=True)
class Episode:
    """One sequence of T tokens: messages of the environment, and the policy's answers to them."""

    tokens: Tokens  # (T,)
    logprobs: Floats  # (T,) nats, by the policy that sampled; 0 where action_mask is false
    action_mask: Mask  # (T,) true where the policy sampled the token

    def training_example(self, **inputs: Array) -> TrainingExample:
        """Return the datum to train on; the loss inputs are (T,) each, one number per token."""
        shifted = {name: values[1:].astype(np.float32) for name, values in inputs.items()}
        datum = Datum(self.tokens[:-1], {"target_tokens": self.tokens[1:], **shifted})
        return datum, int(self.action_mask.sum())


@dataclass(frozen=True)
class Rollout:
    """One attempt at a problem: the policy's answers of all turns, and their total reward.

    It has one episode, or several where the chat template rewrites earlier messages.
    """

    episodes: tuple[Episode, ...]
    reward: float
    tag: str
    text: str  # the last answer
    parsed: bool = True  # whether all answers had the format that the reward reads
    truncated: bool = False  # whether an answer was truncated at max_tokens
    stop_reason: StopReason = StopReason.DONE
    error: str = ""  # of a failed rollout, which has no episodes and no reward
    abstained: bool = False  # whether the environment gave no reward, so that `reward` is 0
    lost_tokens: int = 0  # sampled by failed attempts, whose episodes are not kept
    parts: Mapping[str, float] = field(default_factory=dict)  # of the reward, by name
    retries: int = 0  # attempts that failed before this one
    judgements: tuple[Judgement, ...] = ()  # of a judge that is asked

    @classmethod
    def failure(
        cls, tag: str, error: str, truncated: bool = False, lost_tokens: int = 0
    ) -> Rollout:
        """Return a rollout that failed."""
        return cls(
            episodes=(),
            reward=0.0,
            tag=tag,
            text="",
            parsed=False,
            truncated=truncated,
            stop_reason=StopReason.FAILED,
            error=error,
            lost_tokens=lost_tokens,
        )

    def failing(self, error: str) -> Rollout:
        """Return the rollout as one that failed when it was to be rewarded; it keeps its text."""
        return replace(
            self,
            episodes=(),
            reward=0.0,
            parsed=False,
            stop_reason=StopReason.FAILED,
            error=error,
            lost_tokens=self.lost_tokens + _sampled_tokens(self.episodes),
        )

    @property
    def failed(self) -> bool:
        """True if the rollout failed, so that it has no reward."""
        return self.stop_reason is StopReason.FAILED

    @property
    def rewarded(self) -> bool:
        """True if the rollout has a reward: it did not fail, and its environment gave one."""
        return not self.failed and not self.abstained

    @property
    def complete(self) -> bool:
        """True if the rollout did not fail and no answer was truncated at max_tokens."""
        return not self.failed and not self.truncated


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of a batch, in one group per problem."""

    groups: tuple[tuple[Rollout, ...], ...]

    def all(self) -> Iterator[Rollout]:
        """Iterate over all rollouts, group by group."""
        return chain.from_iterable(self.groups)

    def episodes(self) -> Iterator[Episode]:
        """Iterate over the episodes of all rollouts, in order."""
        return chain.from_iterable(rollout.episodes for rollout in self.all())


@dataclass(frozen=True)
class RolloutConfig:
    """Limits of rollouts."""

    max_tokens: PositiveInt = 64  # maximum tokens per answer
    max_turns: PositiveInt = 8  # maximum answers (turns) per rollout
    # time limit of each call of an environment, in seconds; a rollout that exceeds it fails
    max_seconds: PositiveFloat = 60.0
    # maximum number of concurrent calls of environments; the time that others wait does not count
    # towards max_seconds
    max_acting: PositiveInt = 8
    # maximum share of a batch's rollouts that may fail; if more do, the run fails
    max_failed: Annotated[float, Field(ge=0, le=1)] = 0.2
    # times that a rollout that fails is sampled again, each time with another seed
    retries: NonNegativeInt = 0
    temperature: PositiveFloat = (
        1.0  # sampling temperature; held-out problems are answered greedily
    )
    stop: StopTexts = ()  # texts that end an answer, of which they are the last part


class Snapshot(Stage):
    """Start a sampler of the current weights, without waiting for it.

    With `lag`, training goes on while the sampler is in use.
    """

    # batches by which sampling may lag behind; the loop's options are in the fingerprint of the run
    lag: int = field(default=0, repr=False)

    def run(self, session: TrainingSession) -> Future[Sampler]:
        return session.snapshot()

    def needs(self) -> Iterable[Need]:
        fix = "set policy_lag=0"
        return [Need(TrainingClient, "policy_lag", alternative=fix)] if self.lag else []


class SampleRollouts(Stage):
    """Start all rollouts of a batch, `group` per problem, without waiting for them."""

    group: int
    config: RolloutConfig = RolloutConfig()
    seed: int = 0
    render: PromptRendering = DEFAULT_RENDERING

    def run(
        self, batch: TaskBatch, sampler: Future[Sampler], tokenizer: Tokenizer, progress: Progress
    ) -> Future[Rollouts]:
        return start(self._run(batch, sampler, tokenizer, progress.step))

    def preview(
        self, problems: PlannedTasks, tokenizer: Tokenizer, price: Price | None = None
    ) -> tuple[Table, Table]:
        count = len(problems.tasks) * self.group
        prompts = prompt_tokens(problems.tasks, tokenizer, self.render)
        tokens = generation_cost_rows(
            None if prompts is None else prompts * self.group, count * self.config.max_tokens, price
        )
        judged = judge_cost_rows(problems.tasks, self.group, self.config.max_tokens)
        rows = (("rollouts in all", f"{count:,}"), *tokens, *judged)
        prompt = asyncio.run(first_prompt(problems.tasks[0], tokenizer, self.render))
        first = token_table("The first prompt", [MarkedTokens.of_prompt(prompt)], tokenizer)
        return Table("Rollouts", ("quantity", "count"), rows), first

    async def _run(
        self, batch: TaskBatch, sampler: Future[Sampler], tokenizer: Tokenizer, step: int
    ) -> Rollouts:
        policy = await arrival(sampler)
        runner = RolloutRunner.sampling(policy, tokenizer, self.config, self.render)
        rollouts = await runner.run(batch.tasks, self.group, [self.seed, step])
        if step == 0 and all(rollout.truncated for rollout in rollouts.all()):
            log.warning(
                "all answers of the first batch were cut off: raise playing.max_tokens",
                max_tokens=self.config.max_tokens,
            )
        return rollouts


async def first_prompt(task: Task, tokenizer: Tokenizer, render: PromptRendering) -> Tokens:
    """Return the tokens that a policy reads first, with the tools of the environment."""
    state = _RolloutState(task, 0)
    try:
        with exits_as_failures():
            await state.reset()
    except KitchenError:
        raise
    except Exception as error:
        raise RunFailed(
            f"the environment of the first problem failed: {describe_error(error)}"
        ) from error
    return state.prompt(tokenizer, render)


def prompt_tokens(
    tasks: Sequence[Task], tokenizer: Tokenizer, render: PromptRendering
) -> int | None:
    """Return the number of prompt tokens; None unless all tasks are single questions."""
    repeats = Counter(map(id, tasks))
    questions = {id(task): task for task in tasks if isinstance(task, Question | Prompt)}
    if len(questions) < len(repeats):
        return None
    return sum(
        repeats[key] * len(question_tokens(question, tokenizer, render))
        for key, question in questions.items()
    )


@dataclass(frozen=True)
class RolloutRunner:
    """Samples the answers of a policy to tasks, turn by turn, from their environments."""

    policy: Sampler
    tokenizer: Tokenizer
    config: RolloutConfig
    temperature: float = 1.0
    render: PromptRendering = DEFAULT_RENDERING

    @classmethod
    def sampling(
        cls, policy: Sampler, tokenizer: Tokenizer, config: RolloutConfig, render: PromptRendering
    ) -> RolloutRunner:
        """Return a runner that samples at the temperature of its configuration."""
        return cls(policy, tokenizer, config, config.temperature, render)

    async def run(self, tasks: Sequence[Task], group: int, seed: Sequence[int]) -> Rollouts:
        """Return `group` rollouts of each task; raises RunFailed if too many fail.

        All rollouts take their turns together, so that the composition of sampling batches does
        not depend on how long environments take.
        """
        repeated = list(chain.from_iterable(repeat(task, group) for task in tasks))
        states = list(map(_RolloutState, repeated, spawn_seeds(seed, len(repeated))))
        retries = self.config.retries
        await self._play(states, _groups(states, group), () if retries else states)
        for attempt in range(1, retries + 1):
            failed = [at for at, state in enumerate(states) if state.error]
            if not failed:
                break
            _log_retry(states, failed, attempt)
            seeds = spawn_seeds([*seed, attempt], len(states))
            for at in failed:
                states[at] = states[at].again(seeds[at])
            again = [states[at] for at in failed]
            await self._play(again, _groups(states, group), states if attempt == retries else ())
        self._check_failures(states)
        rollouts = [state.rollout() for state in states]
        return Rollouts(tuple(map(tuple, _groups(rollouts, group))))

    async def _play(
        self,
        states: Sequence[_RolloutState],
        groups: Sequence[Sequence[_RolloutState]],
        judged: Sequence[_RolloutState],
    ) -> None:
        """Play rollouts from their first messages to their end.

        It ends early if too many of the rollouts `judged` hang, each of which takes its whole time.
        """
        await asyncio.gather(*(self._call(state, state.reset, judged) for state in states))
        if self._is_hopeless(judged):
            return
        for rollouts_of_task in groups:
            _check_same_prompt(rollouts_of_task)
        for turn in range(self.config.max_turns):
            if self._is_hopeless(judged):
                return
            await self._turn([state for state in states if not state.done], turn, judged)

    def _check_failures(self, states: Sequence[_RolloutState]) -> None:
        """Raise RunFailed if too many rollouts failed, or if no environment gave any reward."""
        failed = [state for state in states if state.error]
        if len(failed) > self.config.max_failed * len(states):
            raise RunFailed(
                f"{len(failed)} of {len(states)} rollouts failed, more than the "
                f"{self.config.max_failed:.0%} that playing.max_failed allows. The first error: "
                f"{failed[0].error}"
            ) from failed[0].cause
        others = [state for state in states if not state.error]
        if len(others) > 1 and all(state.abstained for state in others):
            raise RunFailed(
                f"none of {len(others)} rollouts has a reward: all their rewards are None, which "
                "is also what a function without `return` returns"
            )

    def _is_hopeless(self, states: Sequence[_RolloutState]) -> bool:
        """Return whether more rollouts than may fail have already taken long to fail."""
        slow = sum(isinstance(state.cause, TookTooLong | WorkerEnded) for state in states)
        return slow > self.config.max_failed * len(states)

    async def _turn(
        self, states: Sequence[_RolloutState], turn: int, judged: Sequence[_RolloutState]
    ) -> None:
        """Sample one answer for each rollout, then step all environments."""
        prompts = [(state, self._prompt(state)) for state in states]
        readable = [(state, prompt) for state, prompt in prompts if prompt is not None]
        sampled = await gather_counted(
            (self._sample(state, prompt, turn) for state, prompt in readable), "answers"
        )
        answered = []
        for (state, prompt), answer in zip(readable, sampled, strict=True):
            if answer is not None:
                state.add_answer(prompt, answer, self.tokenizer.decode(answer.tokens))
                answered.append(state)
        await asyncio.gather(*(self._call(state, state.step, judged) for state in answered))
        await judge_answers([state for state in answered if state.awaits_judge])

    async def _sample(self, state: _RolloutState, prompt: Tokens, turn: int) -> Sampled | None:
        """Sample an answer; the rollout fails if its prompt has become too long."""
        try:
            [answer] = await arrival(
                self.policy.sample(
                    prompt,
                    max_tokens=self.config.max_tokens,
                    seed=turn_seed(state.seed, turn),
                    temperature=self.temperature,
                    stop=self.config.stop,
                )
            )
        except DataError as error:
            if not state.episodes:
                raise
            state.fail(str(error))
            return None
        return answer

    def _prompt(self, state: _RolloutState) -> Tokens | None:
        """Render the messages so far; the rollout fails if the template refuses a later message."""
        try:
            prompt = state.prompt(self.tokenizer, self.render)
            if not state.episodes:
                where = place_of(state.task)
                has_room(prompt, self.config.max_tokens, MAX_TOKENS, self.tokenizer, where)
            return prompt
        except DataError as error:
            if not state.episodes:
                raise
            state.fail(str(error))
            return None

    async def _call(
        self,
        state: _RolloutState,
        call: Callable[[], Awaitable[None]],
        judged: Sequence[_RolloutState],
    ) -> None:
        """Call an environment within its time limit, without counting the wait for other calls."""
        with exits_as_failures():
            try:
                async with self._slots, TimeLimit(self.config.max_seconds, MAX_SECONDS):
                    if not self._is_hopeless(judged):
                        await call()
            except Exception as error:  # noqa: BLE001 a failed rollout is a value
                state.fail(describe_error(error), error)

    @cached_property
    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.config.max_acting)


def _groups(items: Sequence[T], size: int) -> Sequence[Sequence[T]]:
    return [items[at : at + size] for at in range(0, len(items), size)]


def _log_retry(states: Sequence[_RolloutState], failed: Sequence[int], attempt: int) -> None:
    log.warning(
        f"{len(failed)} of {len(states)} rollouts failed and are sampled again",
        retry=attempt,
        first_error=states[failed[0]].error,
    )


def turn_seed(seed: int, turn: int) -> int:
    """Return the sampling seed of a turn of a rollout; it stays below MAX_SEED."""
    return (seed + turn) % MAX_SEED


@dataclass
class _RolloutState:
    """A rollout in progress."""

    task: Task
    seed: int
    env: Env = field(init=False)
    start: Sequence[Message] = ()  # the first messages
    messages: list[Message] = field(default_factory=list)  # all messages so far
    episodes: Sequence[Episode] = ()
    reward: float = 0.0
    abstained: bool = True  # no answer has a reward so far
    parts: dict[str, float] = field(default_factory=dict)  # of the reward, by name
    answer: str = ""
    parsed: bool = True
    truncated: bool = False
    error: str = ""
    cause: Exception | None = None  # the exception of the environment
    done: bool = False
    retries: int = 0  # attempts that failed before this one
    lost_tokens: int = 0  # that they sampled
    judgements: tuple[Judgement, ...] = ()  # of a judge that is asked

    def again(self, seed: int) -> _RolloutState:
        """Return another attempt at the task."""
        lost = self.lost_tokens + _sampled_tokens(self.episodes)
        return _RolloutState(self.task, seed, retries=self.retries + 1, lost_tokens=lost)

    async def reset(self) -> None:
        self.env = await open_env(self.task)
        self.start = await reset_env(self.env)
        self.messages = list(self.start)

    def prompt(self, tokenizer: Tokenizer, render: PromptRendering) -> Tokens:
        """Render the messages so far, with the tools and variables of the environment."""
        inputs = env_inputs(self.env).over(render.chat_template_kwargs)
        tokenizer = render.tokenizer(tokenizer)
        return render_prompt(
            self.messages, tokenizer, None, inputs.tools, inputs.kwargs, may_join=True
        )

    def add_answer(self, prompt: Tokens, sampled: Sampled, text: str) -> None:
        self.episodes = append_answer(self.episodes, prompt, sampled)
        self.answer = text
        self.truncated = self.truncated or sampled.stop_reason == "length"

    async def step(self) -> None:
        result = await step_env(self.env, self.answer)
        self._add(result)
        self.done = not result.messages
        self.messages += [{"role": "assistant", "content": self.answer}, *result.messages]

    def _add(self, result: StepResult) -> None:
        """Add the reward of an answer, if it has one, and its parts."""
        if result.reward is not None:
            self.reward += result.reward
            self.abstained = False
        for name, part in result.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + part
        self.parsed = self.parsed and result.parsed

    @property
    def awaits_judge(self) -> bool:
        """True if a judge completes the reward of the last answer."""
        return isinstance(self.task, Question) and self.task.rubric is not None and not self.error

    def add_verdict(self, rubric: RubricReward, verdict: Verdict) -> None:
        """Add the reward by a judge; the rollout fails if it gave none."""
        self.judgements = verdict.judgements
        if verdict.reward is None:
            self.fail(verdict.problem)
        else:
            self._add(rubric.result(verdict))

    def fail(self, error: str, cause: Exception | None = None) -> None:
        self.error = error
        self.cause = cause
        self.done = True

    def rollout(self) -> Rollout:
        if self.error:
            sampled = self.lost_tokens + _sampled_tokens(self.episodes)
            failure = Rollout.failure(self.task.tag, self.error, self.truncated, sampled)
            text = self.answer if self.judgements else ""
            return replace(failure, retries=self.retries, judgements=self.judgements, text=text)
        return Rollout(
            tuple(self.episodes),
            self.reward,
            self.task.tag,
            self.answer,
            self.parsed,
            self.truncated,
            StopReason.DONE if self.done else StopReason.MAX_TURNS,
            abstained=self.abstained,
            lost_tokens=self.lost_tokens,
            parts=self.parts,
            retries=self.retries,
            judgements=self.judgements,
        )


async def judge_answers(states: Sequence[_RolloutState]) -> None:
    """Complete the rewards of rollouts by the judges of their problems, all at once.

    Judges are models, not environments: the limits of `playing` on calls of environments do not
    hold for them. Equal answers to a problem are judged once.
    """
    by_answer: dict[tuple[int, str], list[_RolloutState]] = {}
    for state in states:
        by_answer.setdefault((id(state.task), state.answer), []).append(state)
    same = list(by_answer.values())
    verdicts = await gather_counted((_verdict(first) for first, *_ in same), "judged answers")
    for equal, (rubric, verdict) in zip(same, verdicts, strict=True):
        for state in equal:
            state.add_verdict(rubric, verdict)


async def _verdict(state: _RolloutState) -> tuple[RubricReward, Verdict]:
    """Return the verdict about the answer of a rollout; one that is too long to judge has none."""
    question = state.task
    assert isinstance(question, Question)
    assert question.rubric is not None
    try:
        verdict = await question.rubric.score(question.messages, question.inputs, state.answer)
    except DataError as error:
        verdict = Verdict(None, {}, problem=str(error))
    return question.rubric, verdict


def _check_same_prompt(group: Sequence[_RolloutState]) -> None:
    """Raise DataError if rollouts of one problem start with different messages.

    Advantages compare rewards within a group, and these would not be comparable.
    """
    first, *others = [state for state in group if not state.error] or group
    for other in others:
        if other.start != first.start and not other.error:
            raise DataError(
                f"rollouts of one task start with different messages: {first.start!r:.200} "
                f"and {other.start!r:.200}. {type(first.task).__name__}.env() must return the "
                "same problem each time: make random choices where the task is created, not there."
            )


def append_answer(episodes: Sequence[Episode], prompt: Tokens, sampled: Sampled) -> list[Episode]:
    """Return the episodes with one more answer.

    The answer extends the last episode if the prompt continues it, and otherwise starts a new one.
    """
    last = episodes[-1] if episodes else None
    if last is not None and np.array_equal(prompt[: len(last.tokens)], last.tokens):
        earlier = list(episodes[:-1])
        pieces = [last]
        unread = prompt[len(last.tokens) :]
    else:
        earlier = list(episodes)
        pieces = []
        unread = prompt
    pieces += [
        Episode(unread, np.zeros(len(unread), np.float32), np.zeros(len(unread), bool)),
        Episode(sampled.tokens, sampled.logprobs, np.ones(len(sampled.tokens), bool)),
    ]
    joined = Episode(
        np.concatenate([piece.tokens for piece in pieces]),
        np.concatenate([piece.logprobs for piece in pieces]).astype(np.float32),
        np.concatenate([piece.action_mask for piece in pieces]),
    )
    return [*earlier, joined]


class ReportRollouts(Stage):
    """Report mean rewards, also by tag, and shares of all rollouts, such as failed ones."""

    shown: int = 2  # number of rollouts per batch that are recorded as samples
    mask_truncated: bool = False  # whether rollouts with a truncated answer are not trained on

    def run(self, rollouts: Rollouts) -> tuple[Metrics, Samples]:
        everything = list(rollouts.all())
        if not everything:
            return generation_metrics(rollouts), Samples(())
        rewarded = succeeded(everything)
        count = len(everything)
        unfinished = sum(rollout.stop_reason is StopReason.MAX_TURNS for rollout in everything)
        sequences = sum(len(rollout.episodes) for rollout in rewarded)
        constant = sum(is_constant(group) for group in rollouts.groups)
        metrics = generation_metrics(rollouts) | Metrics(
            failed=sum(rollout.failed for rollout in everything) / count,
            parsed=sum(rollout.parsed for rollout in everything) / count,
            unfinished=unfinished / count,
            sequences=sequences / max(len(rewarded), 1),
            frac_constant_groups=constant / len(rollouts.groups),
        )
        if self.mask_truncated:
            masked = sum(rollout.truncated for rollout in rewarded)
            metrics["frac_truncated_masked"] = masked / count
        metrics |= _rare_metrics(everything)
        metrics |= _reward_metrics(rewarded) | _part_metrics(everything)
        metrics |= judge_metrics([rollout.judgements for rollout in everything])
        return Metrics(metrics), samples_of(rollouts, self.shown)


def _rare_metrics(everything: Sequence[Rollout]) -> Metrics:
    """Return the shares of rollouts without a reward, and of those sampled again, if not 0."""
    abstained = sum(rollout.abstained for rollout in everything)
    retried = sum(rollout.retries > 0 for rollout in everything)
    counts = {"abstained": abstained, "retried": retried}
    return Metrics({name: number / len(everything) for name, number in counts.items() if number})


def _reward_metrics(rewarded: Sequence[Rollout]) -> Metrics:
    """Return the mean and standard deviation of rewards, over all rollouts and by tag."""
    by_name: dict[str, list[float]] = {}
    for rollout in rewarded:
        by_name.setdefault("reward", []).append(rollout.reward)
        if rollout.tag:
            by_name.setdefault(f"reward/{rollout.tag}", []).append(rollout.reward)
    metrics = Metrics()
    for name, rewards in by_name.items():
        metrics[name] = float(np.mean(rewards))
        metrics[f"{name}_std"] = float(np.std(rewards))
    return metrics


def _part_metrics(rollouts: Sequence[Rollout]) -> Metrics:
    """Return the mean of each part of the rewards, over the rollouts that have it."""
    by_name: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, part in rollout.parts.items():
            by_name.setdefault(f"rewards/{name}", []).append(part)
    return Metrics({name: float(np.mean(parts)) for name, parts in by_name.items()})


def generation_metrics(rollouts: Rollouts) -> Metrics:
    """Return the number of rollouts, the truncated share, and the number of sampled tokens.

    A batch without rollouts has no share.
    """
    everything = list(rollouts.all())
    metrics = Metrics(rollouts=float(len(everything)))
    if everything:
        truncated = sum(rollout.truncated for rollout in everything)
        metrics["truncated"] = truncated / len(everything)
    lost_tokens = sum(rollout.lost_tokens for rollout in everything)
    metrics["sampled_tokens"] = float(_sampled_tokens(rollouts.episodes()) + lost_tokens)
    return metrics


def _sampled_tokens(episodes: Iterable[Episode]) -> int:
    """Return the number of tokens that the policy sampled."""
    return sum(int(episode.action_mask.sum()) for episode in episodes)


def samples_of(rollouts: Rollouts, count: int) -> Samples:
    """Return the first `count` rollouts that succeeded, and the first that failed."""
    failed = [rollout for rollout in rollouts.all() if rollout.failed]
    others = [rollout for rollout in rollouts.all() if not rollout.failed]
    recorded = (*others[:count], *failed[:1])
    return Samples(
        tuple(
            {
                "when": "rollout",
                "tag": rollout.tag,
                "text": rollout.text,
                "reward": rollout.reward if rollout.rewarded else None,
                **recorded_parts(rollout),
                "failed": rollout.error,
                **recorded_judgements(rollout.judgements),
            }
            for rollout in recorded
        )
    )


def recorded_parts(rollout: Rollout) -> Mapping[str, Mapping[str, float]]:
    """Return the parts of the reward as a line of samples.jsonl shows them, if there are any."""
    return {"rewards": dict(rollout.parts)} if rollout.parts else {}


def succeeded(group: Iterable[Rollout]) -> list[Rollout]:
    """Return the rollouts that have a reward: those that did not fail and were given one."""
    return [rollout for rollout in group if rollout.rewarded]


def is_constant(group: Sequence[Rollout]) -> bool:
    """Return whether the rewards of a group are all equal, so that its advantages are 0."""
    return rewards_equal([rollout.reward for rollout in succeeded(group)])


def rewards_equal(rewards: Sequence[float]) -> bool:
    """Return whether rewards are equal up to rounding; true of fewer than two.

    0.1 + 0.2 and 0.3 differ by 6e-17: no answer is better, and dividing by their deviation would
    make advantages of ±1 from it.
    """
    low, high = min(rewards, default=0.0), max(rewards, default=0.0)
    return math.isclose(low, high, rel_tol=REWARD_REL_TOL, abs_tol=REWARD_ABS_TOL)

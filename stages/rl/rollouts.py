"""Rollouts: the policy answers a problem turn by turn, and its environment rewards the answers."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from kitchen.errors import DataError, RunFailed
from kitchen.ports import Future, Message, Sampler, Tokenizer, TrainingSession, arrival, start
from kitchen.ports.environments import Env, Task
from kitchen.ports.sampling import ToolSchema
from kitchen.progress import Progress
from kitchen.stage import Stage
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
from stages.chat.prompts import render_prompt
from stages.chat.token_cost import generation_cost_rows
from stages.evaluate.reference import MAX_SEED, spawn_seeds
from stages.tasks.rewards import Prompt, Question
from stages.tasks.tasks import PlannedTasks, TaskBatch

# a datum to train on, and the number of its tokens that the policy sampled
TrainingExample = tuple[Datum, int]


class StopReason(StrEnum):
    """The reason why a rollout ended."""

    DONE = "done"  # its environment ended it
    MAX_TURNS = "max_turns"  # it was ended after max_turns answers
    FAILED = "failed"  # its environment raised an error, or its prompt became too long


@dataclass(frozen=True)
class Episode:
    """One sequence of T tokens: messages of the environment and the policy's answers to them."""

    tokens: Tokens  # (T,)
    logprobs: Floats  # (T,) nats, by the policy that sampled; 0 where action_mask is false
    action_mask: Mask  # (T,) true where the policy sampled the token

    def training_example(self, **inputs: Array) -> TrainingExample:
        """Return the datum to train on; each of the loss inputs is (T,), one number per token."""
        shifted = {name: values[1:].astype(np.float32) for name, values in inputs.items()}
        datum = Datum(self.tokens[:-1], {"target_tokens": self.tokens[1:], **shifted})
        return datum, int(self.action_mask.sum())


@dataclass(frozen=True)
class Rollout:
    """One problem, played to its end.

    It has one episode, or several where the chat template rewrites earlier messages.
    """

    episodes: tuple[Episode, ...]
    reward: float
    tag: str
    text: str  # the last answer
    parsed: bool = True  # whether all answers could be read in the format asked for
    truncated: bool = False  # whether an answer was cut at max_tokens
    stop_reason: StopReason = StopReason.DONE
    error: str = ""  # of a failed rollout, which has no episodes and no reward

    @classmethod
    def failure(cls, tag: str, error: str) -> Rollout:
        """Return a rollout that failed."""
        return cls((), 0.0, tag, "", parsed=False, stop_reason=StopReason.FAILED, error=error)

    @property
    def failed(self) -> bool:
        """True where the environment failed, so that there is no reward."""
        return self.stop_reason is StopReason.FAILED

    @property
    def complete(self) -> bool:
        """True where nothing failed and no answer was cut."""
        return not self.failed and not self.truncated


@dataclass(frozen=True)
class Rollouts:
    """Rollouts of a batch by problem: those of one group played the same problem."""

    groups: tuple[tuple[Rollout, ...], ...]

    def all(self) -> Iterator[Rollout]:
        """All rollouts, group by group."""
        return (rollout for group in self.groups for rollout in group)


@dataclass(frozen=True)
class RolloutConfig:
    """Limits of rollouts."""

    max_tokens: PositiveInt = 64  # maximum tokens per answer
    max_turns: PositiveInt = 8  # maximum answers per rollout
    max_seconds: PositiveFloat = 60.0  # time limit of an environment for one answer, in seconds
    # concurrent calls of environments; further ones wait, and their time does not count
    max_acting: PositiveInt = 4
    # maximum share of a batch's rollouts that may fail
    max_failed: Annotated[float, Field(ge=0, le=1)] = 0.2


class Snapshot(Stage):
    """Request a copy of the weights to sample from."""

    def run(self, session: TrainingSession) -> Future[Sampler]:
        return session.snapshot()


class RollOut(Stage):
    """Start all rollouts of a batch, `group` of them for each problem, without waiting for them."""

    group: int
    config: RolloutConfig = RolloutConfig()
    seed: int = 0

    def run(
        self, batch: TaskBatch, sampler: Future[Sampler], tokenizer: Tokenizer, progress: Progress
    ) -> Future[Rollouts]:
        return start(self._play(batch, sampler, tokenizer, progress.step))

    def preview(
        self, problems: PlannedTasks, tokenizer: Tokenizer, price: Price | None = None
    ) -> Table:
        count = len(problems.tasks) * self.group
        prompts = prompt_tokens(problems.tasks, tokenizer)
        tokens = generation_cost_rows(
            None if prompts is None else prompts * self.group, count * self.config.max_tokens, price
        )
        return Table("Rollouts", ("what", "count"), (("rollouts in all", f"{count:,}"), *tokens))

    async def _play(
        self, batch: TaskBatch, sampler: Future[Sampler], tokenizer: Tokenizer, step: int
    ) -> Rollouts:
        runner = RolloutRunner(await arrival(sampler), tokenizer, self.config)
        return await runner.run(batch.tasks, self.group, [self.seed, step])


def prompt_tokens(tasks: Sequence[Task], tokenizer: Tokenizer) -> int | None:
    """Return the number of prompt tokens; None if some tasks are not plain questions."""
    repeats = Counter(map(id, tasks))
    questions = {id(task): task for task in tasks if isinstance(task, Question | Prompt)}
    if len(questions) < len(repeats):
        return None
    return sum(
        repeats[key] * len(render_prompt(question.messages, tokenizer))
        for key, question in questions.items()
    )


@dataclass(frozen=True)
class RolloutRunner:
    """Plays problems with a policy."""

    policy: Sampler
    tokenizer: Tokenizer
    config: RolloutConfig
    temperature: float = 1.0

    async def run(self, tasks: Sequence[Task], group: int, seed: Sequence[int]) -> Rollouts:
        """Return `group` rollouts of each task; raises RunFailed if too many fail.

        All rollouts take their turns together, so that the batches of sampled answers do not
        depend on how long environments take.
        """
        repeated = [task for task in tasks for _ in range(group)]
        seeds = spawn_seeds(seed, len(repeated))
        states = [_EpisodeState(task, one) for task, one in zip(repeated, seeds, strict=True)]
        await asyncio.gather(*(self._call(state, state.reset) for state in states))
        starts = range(0, len(states), group)
        for at in starts:
            _check_same_prompt(states[at : at + group])
        for turn in range(self.config.max_turns):
            await self._turn([state for state in states if not state.done], turn)
        self._check_failures([state.error for state in states])
        rollouts = [state.rollout() for state in states]
        return Rollouts(tuple(tuple(rollouts[at : at + group]) for at in starts))

    def _check_failures(self, errors: Sequence[str]) -> None:
        failed = [error for error in errors if error]
        if len(failed) > self.config.max_failed * len(errors):
            raise RunFailed(
                f"{len(failed)} of {len(errors)} rollouts failed, and "
                f"{self.config.max_failed:.0%} may (playing.max_failed). The first error: "
                f"{failed[0]}"
            )

    async def _turn(self, states: Sequence[_EpisodeState], turn: int) -> None:
        """Sample one answer for each rollout, then step all environments."""
        prompts = [(state, self._prompt(state)) for state in states]
        readable = [(state, prompt) for state, prompt in prompts if prompt is not None]
        sampled = await asyncio.gather(
            *(self._sample(state, prompt, turn) for state, prompt in readable)
        )
        answered = []
        for (state, prompt), answer in zip(readable, sampled, strict=True):
            if answer is not None:
                state.add_answer(prompt, answer, self.tokenizer.decode(answer.tokens))
                answered.append(state)
        await asyncio.gather(*(self._call(state, state.step) for state in answered))

    async def _sample(self, state: _EpisodeState, prompt: Tokens, turn: int) -> Sampled | None:
        """Sample an answer; a prompt that has become too long fails the rollout."""
        try:
            [answer] = await arrival(
                self.policy.sample(
                    prompt,
                    max_tokens=self.config.max_tokens,
                    seed=(state.seed + turn) % MAX_SEED,
                    temperature=self.temperature,
                )
            )
        except DataError as error:
            if not state.episodes:
                raise
            state.fail(str(error))
            return None
        return answer

    def _prompt(self, state: _EpisodeState) -> Tokens | None:
        """Render the messages so far; later messages that the template refuses fail the rollout."""
        try:
            return render_prompt(state.messages, self.tokenizer, tools=state.tools)
        except DataError as error:
            if not state.episodes:
                raise
            state.fail(str(error))
            return None

    async def _call(self, state: _EpisodeState, call: Callable[[], Awaitable[None]]) -> None:
        """Call an environment within its time limit, in which waiting for others does not count."""
        limit = asyncio.timeout(None)
        try:
            async with self._slots, limit:
                limit.reschedule(asyncio.get_running_loop().time() + self.config.max_seconds)
                await call()
        except Exception as error:  # noqa: BLE001 a failed rollout is a value
            late = f"it took more than {self.config.max_seconds:g} s"
            state.fail(late if limit.expired() else f"{type(error).__name__}: {error}")

    @cached_property
    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.config.max_acting)


@dataclass
class _EpisodeState:
    """A rollout in progress."""

    task: Task
    seed: int
    env: Env = field(init=False)
    messages: list[Message] = field(default_factory=list)
    episodes: Sequence[Episode] = ()
    reward: float = 0.0
    answer: str = ""
    parsed: bool = True
    truncated: bool = False
    error: str = ""
    done: bool = False

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the environment offers, if any."""
        return getattr(self.env, "tools", ())

    async def reset(self) -> None:
        self.env = self.task.env()
        self.messages = list(await self.env.reset())

    def add_answer(self, prompt: Tokens, sampled: Sampled, text: str) -> None:
        self.episodes = append_answer(self.episodes, prompt, sampled)
        self.answer = text
        self.truncated = self.truncated or sampled.stop_reason == "length"

    async def step(self) -> None:
        result = await self.env.step(self.answer)
        if not math.isfinite(result.reward):
            raise ValueError(f"its reward is {result.reward}")
        self.reward += result.reward
        self.parsed = self.parsed and result.parsed
        self.done = not result.messages
        self.messages += [{"role": "assistant", "content": self.answer}, *result.messages]

    def fail(self, error: str) -> None:
        self.error = error
        self.done = True

    def rollout(self) -> Rollout:
        if self.error:
            return Rollout.failure(self.task.tag, self.error)
        return Rollout(
            tuple(self.episodes),
            self.reward,
            self.task.tag,
            self.answer,
            self.parsed,
            self.truncated,
            StopReason.DONE if self.done else StopReason.MAX_TURNS,
        )


def _check_same_prompt(group: Sequence[_EpisodeState]) -> None:
    """Raise DataError if rollouts of one problem start with different messages.

    Their rewards could not be compared.
    """
    first, *others = [state for state in group if not state.error] or group
    for other in others:
        if other.messages != first.messages and not other.error:
            raise DataError(
                f"rollouts of one problem start with different messages: {first.messages!r:.200} "
                f"and {other.messages!r:.200}. {type(first.task).__name__}.env() must return the "
                "same problem each time: make random choices where the task is created."
            )


def append_answer(episodes: Sequence[Episode], prompt: Tokens, sampled: Sampled) -> list[Episode]:
    """Return the episodes with one more answer.

    It extends the last episode if the prompt continues that, and else starts a new one.
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
    """Publish rewards, also by tag, and the shares that failed, were cut or could not be parsed."""

    shown: int = 2  # rollouts of a batch that are recorded as samples

    def run(self, rollouts: Rollouts) -> tuple[Metrics, Samples]:
        every = list(rollouts.all())
        played = succeeded(every)
        count = max(len(played), 1)
        cut_off = sum(rollout.stop_reason is StopReason.MAX_TURNS for rollout in played)
        constant = sum(is_constant(group) for group in rollouts.groups)
        metrics = generation_metrics(rollouts) | Metrics(
            failed=(len(every) - len(played)) / len(every),
            parsed=sum(rollout.parsed for rollout in played) / count,
            unfinished=cut_off / count,
            sequences=sum(len(rollout.episodes) for rollout in played) / count,
            frac_constant_groups=constant / len(rollouts.groups),
        )
        for tag in dict.fromkeys(tag for rollout in played for tag in ("", rollout.tag)):
            rewards = [rollout.reward for rollout in played if tag in ("", rollout.tag)]
            name = f"reward/{tag}" if tag else "reward"
            metrics |= {name: float(np.mean(rewards)), f"{name}_std": float(np.std(rewards))}
        return Metrics(metrics), samples_of(rollouts, self.shown)


def generation_metrics(rollouts: Rollouts) -> Metrics:
    """Return the number of rollouts, the share that was cut, and the number of sampled tokens."""
    every = list(rollouts.all())
    episodes = [episode for rollout in every for episode in rollout.episodes]
    return Metrics(
        rollouts=float(len(every)),
        truncated=sum(rollout.truncated for rollout in every) / len(every),
        sampled_tokens=float(sum(int(episode.action_mask.sum()) for episode in episodes)),
    )


def samples_of(rollouts: Rollouts, count: int) -> Samples:
    """Return the first `count` rollouts that succeeded, and the first that failed."""
    failed = [rollout for rollout in rollouts.all() if rollout.failed]
    recorded = (*succeeded(rollouts.all())[:count], *failed[:1])
    return Samples(
        tuple(
            {
                "when": "rollout",
                "tag": rollout.tag,
                "text": rollout.text,
                "reward": rollout.reward,
                "failed": rollout.error,
            }
            for rollout in recorded
        )
    )


def succeeded(group: Iterable[Rollout]) -> list[Rollout]:
    """Return the rollouts that have a reward."""
    return [rollout for rollout in group if not rollout.failed]


def is_constant(group: Sequence[Rollout]) -> bool:
    """Return whether all rollouts of a group have one reward, so that there is nothing to learn."""
    return len({rollout.reward for rollout in succeeded(group)}) < 2

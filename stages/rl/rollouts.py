"""Rollouts: what a policy answers to a problem, turn by turn, and what that is worth."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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

# what is learnt from a sequence, and how many of its tokens the policy chose
TrainingExample = tuple[Datum, int]


@dataclass(frozen=True)
class Episode:
    """One sequence of T tokens: what was said to the policy, and what it answered."""

    tokens: Tokens  # (T,)
    logprobs: Floats  # (T,) nats, of the policy that answered; 0 where it did not speak
    acted: Mask  # (T,) where it spoke

    def lesson(self, **inputs: Array) -> TrainingExample:
        """To learn from it; each of the inputs is (T,), one number per token."""
        return Datum(
            self.tokens[:-1],
            {
                "target_tokens": self.tokens[1:],
                **{name: each[1:].astype(np.float32) for name, each in inputs.items()},
            },
        ), int(self.acted.sum())


@dataclass(frozen=True)
class Rollout:
    """One problem, played to its end. One episode, or several where the template rewrites what was
    said before.
    """

    episodes: tuple[Episode, ...]
    reward: float
    tag: str
    text: str  # the last answer
    parsed: bool = True  # whether all answers could be read as what was asked for
    truncated: bool = False  # an answer was cut at max_tokens
    unfinished: bool = False  # it was ended after max_turns
    failed: str = ""  # what went wrong in its environment; it then has no reward


@dataclass(frozen=True)
class Rollouts:
    """By problem: those of one group played the same one."""

    groups: tuple[tuple[Rollout, ...], ...]

    def all(self) -> Iterator[Rollout]:
        return (rollout for group in self.groups for rollout in group)


@dataclass(frozen=True)
class RolloutConfig:
    """How problems are played."""

    max_tokens: PositiveInt = 64  # per answer
    max_turns: PositiveInt = 8  # answers of a rollout
    max_seconds: PositiveFloat = 60.0  # that an environment may take over one answer
    # environments that take an answer at one time, or begin; the others wait for them
    max_acting: PositiveInt = 4
    # share of a batch's rollouts that may fail
    max_failed: Annotated[float, Field(ge=0, le=1)] = 0.2


class Snapshot(Stage):
    """Ask for a copy of the weights to act with."""

    def run(self, session: TrainingSession) -> Future[Sampler]:
        return session.snapshot()


class RollOut(Stage):
    """Set all rollouts of a batch going, `group` of them on each problem; nobody waits yet."""

    group: int
    how: RolloutConfig = RolloutConfig()
    seed: int = 0

    def run(
        self, batch: TaskBatch, sampler: Future[Sampler], tokenizer: Tokenizer, progress: Progress
    ) -> Future[Rollouts]:
        return start(self._all(batch, sampler, tokenizer, progress.step))

    def preview(
        self, problems: PlannedTasks, tokenizer: Tokenizer, price: Price | None = None
    ) -> Table:
        count, asked = len(problems.tasks) * self.group, tokens_asked(problems.tasks, tokenizer)
        tokens = generation_cost_rows(
            None if asked is None else asked * self.group, count * self.how.max_tokens, price
        )
        return Table("Rollouts", ("what", "count"), (("rollouts in all", f"{count:,}"), *tokens))

    async def _all(
        self, batch: TaskBatch, sampler: Future[Sampler], tokenizer: Tokenizer, step: int
    ) -> Rollouts:
        player = RolloutRunner(await arrival(sampler), tokenizer, self.how)
        return await player.groups(batch.tasks, self.group, [self.seed, step])


def tokens_asked(tasks: Sequence[Task], tokenizer: Tokenizer) -> int | None:
    """What is read before the answers; None if some are no plain questions, so that it comes out in
    play alone.
    """
    played = Counter(map(id, tasks))
    questions = {id(task): task for task in tasks if isinstance(task, Question | Prompt)}
    if len(questions) < len(played):
        return None
    return sum(
        played[name] * len(render_prompt(each.messages, tokenizer))
        for name, each in questions.items()
    )


@dataclass(frozen=True)
class RolloutRunner:
    """A policy that plays problems."""

    policy: Sampler
    tokenizer: Tokenizer
    how: RolloutConfig
    temperature: float = 1.0

    async def groups(self, tasks: Sequence[Task], count: int, seed: Sequence[int]) -> Rollouts:
        """`count` rollouts of each task; raises RunFailed where too many fail.

        All take their turns together, so that which answers are drawn in one batch does not depend
        on how long environments take.
        """
        games = [
            _EpisodeState(task, number)
            for task, number in zip(
                [task for task in tasks for _ in range(count)],
                spawn_seeds(seed, len(tasks) * count),
                strict=True,
            )
        ]
        await asyncio.gather(*(self._asked(game, game.reset) for game in games))
        for at in range(0, len(games), count):
            _refuse_unlike(games[at : at + count])
        for turn in range(self.how.max_turns):
            await self._turn([game for game in games if not game.over], turn)
        failed = [game.failed for game in games if game.failed]
        if len(failed) > self.how.max_failed * len(games):
            raise RunFailed(
                f"{len(failed)} of {len(games)} rollouts failed, and {self.how.max_failed:.0%} "
                "may; the "
                f"first: {failed[0]}"
            )
        played = [game.rollout() for game in games]
        return Rollouts(
            tuple(tuple(played[at : at + count]) for at in range(0, len(played), count))
        )

    async def _turn(self, games: Sequence[_EpisodeState], turn: int) -> None:
        prompts = {
            at: prompt for at, game in enumerate(games) if (prompt := self._read(game)) is not None
        }
        drawn = await asyncio.gather(
            *(self._drawn(games[at], prompt, turn) for at, prompt in prompts.items())
        )
        answered = [
            (games[at], prompt, one)
            for (at, prompt), one in zip(prompts.items(), drawn, strict=True)
            if one
        ]
        for game, prompt, one in answered:
            game.answered(prompt, one, self.tokenizer.decode(one.tokens))
        await asyncio.gather(*(self._asked(game, game.step) for game, _, _ in answered))

    async def _drawn(self, game: _EpisodeState, prompt: Tokens, turn: int) -> Sampled | None:
        """An answer; that what was said has grown too long to be read fails the game."""
        try:
            [one] = await arrival(
                self.policy.sample(
                    prompt,
                    max_tokens=self.how.max_tokens,
                    seed=(game.seed + turn) % MAX_SEED,
                    temperature=self.temperature,
                )
            )
        except DataError as error:
            if not game.episodes:
                raise
            game.fail(str(error))
            return None
        return one

    def _read(self, game: _EpisodeState) -> Tokens | None:
        """What the policy is to go on from; what a template refuses of an environment's later words
        fails the game.
        """
        try:
            return render_prompt(game.said, self.tokenizer, tools=game.tools)
        except DataError as error:
            if not game.episodes:
                raise
            game.fail(str(error))
            return None

    async def _asked(self, game: _EpisodeState, call: Callable[[], Awaitable[None]]) -> None:
        """What an environment says, in its time: that in which it waits for others does not count."""
        limit = asyncio.timeout(None)
        try:
            async with self._free, limit:
                limit.reschedule(asyncio.get_running_loop().time() + self.how.max_seconds)
                await call()
        except Exception as error:  # noqa: BLE001 a failed rollout is a value
            late = f"it took more than {self.how.max_seconds:g} s"
            game.fail(late if limit.expired() else f"{type(error).__name__}: {error}")

    @cached_property
    def _free(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.how.max_acting)


@dataclass
class _EpisodeState:
    """A rollout under way."""

    task: Task
    seed: int
    env: Env = field(init=False)
    said: list[Message] = field(default_factory=list)
    episodes: Sequence[Episode] = ()
    reward: float = 0.0
    answer: str = ""
    parsed: bool = True
    truncated: bool = False
    failed: str = ""
    over: bool = False

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """That the environment offers, if it does."""
        return getattr(self.env, "tools", ())

    async def reset(self) -> None:
        self.env = self.task.env()
        self.said = list(await self.env.reset())

    def answered(self, prompt: Tokens, drawn: Sampled, text: str) -> None:
        self.episodes = extended(self.episodes, prompt, drawn)
        self.answer, self.truncated = text, self.truncated or drawn.stop_reason == "length"

    async def step(self) -> None:
        came = await self.env.step(self.answer)
        if not math.isfinite(came.reward):
            raise ValueError(f"its reward is {came.reward}")
        self.reward, self.parsed, self.over = (
            self.reward + came.reward,
            self.parsed and came.parsed,
            not came.messages,
        )
        self.said += [{"role": "assistant", "content": self.answer}, *came.messages]

    def fail(self, why: str) -> None:
        self.failed, self.over = why, True

    def rollout(self) -> Rollout:
        if self.failed:
            return Rollout((), 0.0, self.task.tag, "", parsed=False, failed=self.failed)
        return Rollout(
            tuple(self.episodes),
            self.reward,
            self.task.tag,
            self.answer,
            self.parsed,
            self.truncated,
            not self.over,
        )


def _refuse_unlike(group: Sequence[_EpisodeState]) -> None:
    """Raises DataError where rollouts of one problem begin with different words: their rewards tell
    nothing then.
    """
    first, *others = [game for game in group if not game.failed] or group
    for other in others:
        if other.said != first.said and not other.failed:
            raise DataError(
                f"rollouts of one problem are not asked the same, but {first.said!r:.200} and "
                f"{other.said!r:.200}: {type(first.task).__name__}.env() must give the same "
                "problem each "
                "time; draw it where the task is made"
            )


def extended(episodes: Sequence[Episode], prompt: Tokens, drawn: Sampled) -> list[Episode]:
    """With an answer more: in the last episode if the prompt goes on where that ends, else in one
    of its own.
    """
    before = episodes[-1] if episodes else None
    if before is not None and np.array_equal(prompt[: len(before.tokens)], before.tokens):
        rest, kept = prompt[len(before.tokens) :], list(episodes[:-1])
    else:
        before, rest, kept = None, prompt, list(episodes)
    quiet, spoke = np.zeros(len(rest), np.float32), np.ones(len(drawn.tokens), bool)
    tokens, logprobs, acted = (
        [rest, drawn.tokens],
        [quiet, drawn.logprobs],
        [quiet.astype(bool), spoke],
    )
    if before is not None:
        tokens, logprobs, acted = (
            [before.tokens, *tokens],
            [before.logprobs, *logprobs],
            [before.acted, *acted],
        )
    return [
        *kept,
        Episode(
            np.concatenate(tokens),
            np.concatenate(logprobs).astype(np.float32),
            np.concatenate(acted),
        ),
    ]


class ReportRollouts(Stage):
    """Publish rewards, by tag too, and how many rollouts failed, were cut or could not be read."""

    shown: int = 2  # rollouts of a batch that go into the record

    def run(self, rollouts: Rollouts) -> tuple[Metrics, Samples]:
        every = list(rollouts.all())
        played = alive(every)
        metrics = written(rollouts) | Metrics(
            failed=(len(every) - len(played)) / len(every),
            parsed=sum(each.parsed for each in played) / max(len(played), 1),
            unfinished=sum(each.unfinished for each in played) / max(len(played), 1),
            sequences=sum(len(each.episodes) for each in played) / max(len(played), 1),
            frac_constant_groups=sum(is_constant(group) for group in rollouts.groups)
            / len(rollouts.groups),
        )
        for tag in dict.fromkeys(each for one in played for each in ("", one.tag)):
            rewards = [each.reward for each in played if tag in ("", each.tag)]
            name = f"reward/{tag}" if tag else "reward"
            metrics |= {name: float(np.mean(rewards)), f"{name}_std": float(np.std(rewards))}
        return Metrics(metrics), shown(rollouts, self.shown)


def written(rollouts: Rollouts) -> Metrics:
    """How many rollouts there are, what share of them was cut, and their tokens."""
    every = list(rollouts.all())
    return Metrics(
        rollouts=float(len(every)),
        truncated=sum(each.truncated for each in every) / len(every),
        sampled_tokens=float(sum(int(one.acted.sum()) for each in every for one in each.episodes)),
    )


def shown(rollouts: Rollouts, count: int) -> Samples:
    """The first few of them that did not fail, and the first that did, for the record."""
    failed = [each for each in rollouts.all() if each.failed]
    return Samples(
        tuple(
            {
                "when": "rollout",
                "tag": each.tag,
                "text": each.text,
                "reward": each.reward,
                "failed": each.failed,
            }
            for each in (*alive(rollouts.all())[:count], *failed[:1])
        )
    )


def alive(group: Iterable[Rollout]) -> list[Rollout]:
    """Those that have a reward."""
    return [rollout for rollout in group if not rollout.failed]


def is_constant(group: Sequence[Rollout]) -> bool:
    """Whether no rollout of it went better than another, so that there is nothing to learn from it."""
    return len({each.reward for each in alive(group)}) < 2

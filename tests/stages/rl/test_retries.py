"""Rollouts that are sampled again after a failure, and settings of their sampling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.fake.training import FakeTraining
from kitchen.errors import RunFailed
from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult
from recipes.rl import Rl
from stages.rl.rollouts import ReportRollouts, RolloutConfig, RolloutRunner, Rollouts

LETTERS = tuple("aeiounrst")


@dataclass
class Unreliable:
    """A task of two turns whose environment fails in its first calls."""

    failures: int
    tag: str = "unreliable"
    calls: Iterator[int] = field(default_factory=count)
    answers: list[str] = field(default_factory=list)

    def env(self) -> Env:
        return UnreliableEnv(self)


@dataclass
class Hanging:
    """A task, and its own environment, which never starts."""

    tag: str = "hanging"
    calls: int = 0

    def env(self) -> Any:
        return self

    async def reset(self) -> Sequence[Message]:
        self.calls += 1
        await asyncio.sleep(60)
        return ()

    async def step(self, answer: str) -> StepResult:
        raise AssertionError


@dataclass
class UnreliableEnv:
    task: Unreliable
    turns: int = 0

    async def reset(self) -> Sequence[Message]:
        return [{"role": "user", "content": "Name a dish."}]

    async def step(self, answer: str) -> StepResult:
        self.turns += 1
        self.task.answers.append(answer)
        if self.turns == 2 and next(self.task.calls) < self.task.failures:
            raise ConnectionError("no reply")
        again: Message = {"role": "user", "content": "Another?"}
        return StepResult(1.0, (again,) if self.turns == 1 else ())


def play(*tasks: Any, group: int = 2, **settings: Any) -> Rollouts:
    client = FakeTraining()
    config = RolloutConfig(4, **settings)
    runner = RolloutRunner(client.sampler("fake"), client.tokenizer("fake"), config)
    return asyncio.run(runner.run(tasks, group, [0, 0]))


def test_failed_rollouts_are_sampled_again() -> None:
    task = Unreliable(failures=3)
    rollouts = play(task, Unreliable(failures=0), retries=2, max_failed=0.0)
    [one, other], [steady, _] = rollouts.groups
    assert sorted([one.retries, other.retries, steady.retries]) == [0, 1, 2]
    assert [rollout.reward for rollout in rollouts.all()] == [2.0] * 4
    assert len(set(task.answers)) > 4, "each attempt has another seed"
    metrics = ReportRollouts().run(rollouts)[0]
    assert metrics["retried"] == 0.5
    sampled = sum(int(episode.action_mask.sum()) for episode in rollouts.episodes())
    assert one.lost_tokens > 0
    lost = sum(rollout.lost_tokens for rollout in rollouts.all())
    assert metrics["sampled_tokens"] == sampled + lost


def test_other_rollouts_do_not_depend_on_retries() -> None:
    steady, disturbed = (
        play(Unreliable(failures), Unreliable(0), retries=1).groups[1] for failures in (0, 2)
    )
    assert [rollout.text for rollout in steady] == [rollout.text for rollout in disturbed]
    first, second = (play(Unreliable(2), retries=1).groups[0][0].text for _ in range(2))
    assert first == second != play(Unreliable(0)).groups[0][0].text


def test_rollouts_that_fail_each_time_are_failed() -> None:
    with pytest.raises(RunFailed, match=r"2 of 2 rollouts failed.*ConnectionError: no reply"):
        play(Unreliable(failures=6), retries=2)
    rollouts = play(Unreliable(failures=6), retries=2, max_failed=1.0)
    assert [(rollout.failed, rollout.retries) for rollout in rollouts.all()] == [(True, 2)] * 2
    assert "retried" not in ReportRollouts().run(play(Unreliable(0), retries=2))[0]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_batch_ends_once_too_many_rollouts_hang(retries: int) -> None:
    task = Hanging()
    with pytest.raises(RunFailed, match=r"[2-9] of 16 rollouts failed.*took more than 0.05 s"):
        play(*[task] * 8, retries=retries, max_seconds=0.05, max_acting=2, max_failed=0.1)
    first = 16 if retries else 0  # which a retry could have replaced
    assert task.calls - first <= 4


def test_temperature_and_stop_texts_reach_the_sampler() -> None:
    client, requests = FakeTraining(), list[dict[str, Any]]()

    class Recorder:
        def sample(self, prompt: Any, **options: Any) -> Any:
            requests.append(options)
            return client.sampler("fake").sample(prompt, **options)

    sampler: Any = Recorder()
    config = RolloutConfig(16, temperature=0.5, stop=LETTERS)
    runner = RolloutRunner(sampler, client.tokenizer("fake"), config, config.temperature)
    rollouts = asyncio.run(runner.run([Unreliable(0)], 8, [0]))
    assert {(request["temperature"], request["stop"]) for request in requests} == {(0.5, LETTERS)}
    ended = [rollout.text for rollout in rollouts.all() if rollout.text.endswith(LETTERS)]
    assert ended
    assert all(set(text[:-1]).isdisjoint(LETTERS) for text in ended)


@pytest.mark.parametrize(("value", "stop"), [("END", ("END",)), (["a", "b"], ("a", "b")), ((), ())])
def test_one_or_several_stop_texts_can_be_set(value: Any, stop: tuple[str, ...]) -> None:
    assert Rl(playing={"stop": value}).playing.stop == stop  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["", ["a", ""], [1], 3])
def test_other_stop_texts_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"playing\.stop\n.*end an answer"):
        Rl(playing={"stop": value})  # type: ignore[arg-type]

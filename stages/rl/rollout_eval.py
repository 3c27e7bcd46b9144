"""Evaluation of the policy on held-out problems, before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from kitchen.ports import BlobStore, Sampler, Tokenizer, TrainingClient
from kitchen.ports.environments import Task
from kitchen.stage import Stage
from kitchen.statistics.intervals import Interval, interval, paired_interval
from kitchen.statistics.samples import SHARE, UNBOUNDED, Bounds
from kitchen.statistics.significance import sign_flip
from kitchen.types import Metrics, Samples, Table
from stages.chat.template import DEFAULT_RENDERING, PromptRendering
from stages.evaluate.record import NO_SCORE, RecordedItem, counted, record_row
from stages.evaluate.reference import open_sampler
from stages.rl.rollouts import (
    Rollout,
    RolloutConfig,
    RolloutRunner,
    Rollouts,
    recorded_parts,
)
from stages.tasks.judge_records import recorded_judgements
from stages.tasks.rewards import Prompt, Question
from stages.tasks.tasks import Tasks, item_of_task
from stages.train.session import FinalWeights


@dataclass(frozen=True)
class PolicyEvaluation:
    """Rewards and answers of one greedy rollout per held-out problem, by held-out set."""

    # None for a failed rollout, and for one whose environment gave no reward
    rewards: Mapping[str, tuple[float | None, ...]]
    errors: Mapping[str, tuple[str, ...]]  # of failed rollouts; empty for the others
    answers: Mapping[str, tuple[str | None, ...]]  # None if failed or truncated

    def failed(self, name: str) -> int:
        """Return the number of rollouts of a set that failed."""
        return sum(map(bool, self.errors[name]))

    def truncated(self, name: str) -> int:
        """Return the number of rollouts of a set whose answer was truncated at max_tokens."""
        return self.answers[name].count(None) - self.failed(name)


@dataclass(frozen=True)
class PolicyBefore(PolicyEvaluation):
    """Evaluation of the initial weights."""


@dataclass(frozen=True)
class PolicyAfter(PolicyEvaluation):
    """Evaluation of the final weights."""


class EvaluateBasePolicy(Stage):
    """Evaluate the initial weights on the held-out problems, greedily."""

    memoize = True
    model: str  # a name of weights
    config: RolloutConfig
    render: PromptRendering = DEFAULT_RENDERING

    async def run(
        self,
        client: TrainingClient,
        tokenizer: Tokenizer,
        tasks: Tasks,
        blobs: BlobStore | None = None,
    ) -> tuple[PolicyBefore, Samples]:
        sampler = open_sampler(self.model, client, blobs)
        rollouts = await greedy_rollouts(sampler, tokenizer, tasks, self.config, self.render)
        return _evaluation(PolicyBefore, rollouts), _samples(tasks, rollouts, "before")


class EvaluateTrainedPolicy(Stage):
    """Evaluate the final weights on the held-out problems, greedily."""

    memoize = True
    config: RolloutConfig
    render: PromptRendering = DEFAULT_RENDERING

    async def run(
        self, client: TrainingClient, tokenizer: Tokenizer, tasks: Tasks, weights: FinalWeights
    ) -> tuple[PolicyAfter, Samples]:
        sampler = client.sampler(weights)
        rollouts = await greedy_rollouts(sampler, tokenizer, tasks, self.config, self.render)
        return _evaluation(PolicyAfter, rollouts), _samples(tasks, rollouts, "after")


async def greedy_rollouts(
    sampler: Sampler,
    tokenizer: Tokenizer,
    tasks: Tasks,
    config: RolloutConfig,
    render: PromptRendering,
) -> dict[str, Rollouts]:
    """Return one greedy rollout of each held-out problem, by set; the sampler is closed."""
    runner = RolloutRunner(sampler, tokenizer, config, 0.0, render)
    rollouts = dict[str, Rollouts]()
    try:
        for name, problems in tasks.held_out.items():
            rollouts[name] = await runner.run(problems, 1, [0])
    finally:
        sampler.close()
    return rollouts


E = TypeVar("E", bound=PolicyEvaluation)


def _evaluation(kind: type[E], rollouts: Mapping[str, Rollouts]) -> E:
    rewards = dict[str, tuple[float | None, ...]]()
    errors = dict[str, tuple[str, ...]]()
    answers = dict[str, tuple[str | None, ...]]()
    for name, rollouts_of_set in rollouts.items():
        rewards[name] = tuple(map(_reward, rollouts_of_set.all()))
        errors[name] = tuple(rollout.error for rollout in rollouts_of_set.all())
        answers[name] = tuple(
            rollout.text if rollout.complete else None for rollout in rollouts_of_set.all()
        )
    return kind(rewards, errors, answers)


def _reward(rollout: Rollout) -> float | None:
    return rollout.reward if rollout.rewarded else None


def _samples(tasks: Tasks, rollouts: Mapping[str, Rollouts], when: str) -> Samples:
    """Return the rollouts as lines of samples.jsonl; each is the only one of its problem."""
    records: list[dict[str, Any]] = []
    for name, rollouts_of_set in rollouts.items():
        problems = zip(tasks.held_out[name], rollouts_of_set.all(), strict=True)
        for at, (task, rollout) in enumerate(problems):
            scores = {"reward": rollout.reward} if rollout.rewarded else {}
            shown: dict[str, Any] = {
                "when": when,
                "text": rollout.text,
                "reward": _reward(rollout),
                **recorded_parts(rollout),
                "parsed": rollout.parsed,
                "truncated": rollout.truncated,
                "failed": rollout.error,
                **recorded_judgements(rollout.judgements),
            }
            records.append(record_row(recorded_task(task, at), name, at, scores, **shown))
    return Samples(tuple(records))


def recorded_task(task: Task, index: int) -> RecordedItem:
    """Return the item of a task of a set, with the place and columns of its row if it has one."""
    if isinstance(task, Question):
        return RecordedItem(item_of_task(task, index), task.where, task.columns)
    where = task.where if isinstance(task, Prompt) else ""
    return RecordedItem(item_of_task(task, index), where)


class CompareRewards(Stage):
    """Compare mean rewards before and after training, set by set, in pairs of the same problem.

    A problem counts if both rollouts have a reward. If all rewards lie within 0 and 1, this is
    taken as their range.
    """

    def run(self, before: PolicyBefore, after: PolicyAfter) -> tuple[Metrics, Table]:
        metrics = Metrics()
        rows = list[tuple[str, ...]]()
        for name in after.rewards:
            old, new = _both_rewards(name, before, after)
            metrics |= _failure_metrics(name, before, after)
            failed = sum(map(any, zip(before.errors[name], after.errors[name], strict=True)))
            n = counted(len(new) + failed, failed)
            if not new:
                rows.append((name, n, NO_SCORE, NO_SCORE, ""))
                continue
            bounds = reward_bounds([*old, *new])
            gain = paired_interval(old, new, bounds=bounds)
            metrics |= _reward_metrics(name, old, new, gain)
            means = (interval(rewards, bounds=bounds).format() for rewards in (old, new))
            rows.append((name, n, *means, gain.format(sign=True)))
        columns = ("held-out set", "n", "before", "after", "difference")
        return metrics, Table(
            "Mean reward with greedy decoding, 95 % intervals", columns, tuple(rows)
        )


def reward_bounds(rewards: Sequence[float]) -> Bounds:
    """Return the range of rewards: 0 to 1 if all lie within, since environments state none."""
    return SHARE if 0 <= min(rewards) <= max(rewards) <= 1 else UNBOUNDED


def _reward_metrics(
    name: str, old: Sequence[float], new: Sequence[float], gain: Interval
) -> Mapping[str, float]:
    """Return the mean rewards of a set, and their difference."""
    low = {f"{name}/reward_gain_low": gain.low} if gain.known else {}
    return {
        f"{name}/reward_before": float(np.mean(old)),
        f"{name}/reward_after": float(np.mean(new)),
        f"{name}/reward_gain": gain.estimate,
        f"{name}/reward_gain_p": sign_flip(old, new).p_value,
        **low,
    }


def _both_rewards(
    name: str, before: PolicyBefore, after: PolicyAfter
) -> tuple[list[float], list[float]]:
    """Return the rewards of a set's problems before and after, of those that have both."""
    old, new = list[float](), list[float]()
    for one, other in zip(before.rewards[name], after.rewards[name], strict=True):
        if one is not None and other is not None:
            old.append(one)
            new.append(other)
    return old, new


def _failure_metrics(name: str, before: PolicyBefore, after: PolicyAfter) -> Mapping[str, float]:
    """Return how many rollouts of a set failed, and how many answers were truncated."""
    return {
        f"{name}/failed_before": float(before.failed(name)),
        f"{name}/failed_after": float(after.failed(name)),
        f"{name}/truncated_before": float(before.truncated(name)),
        f"{name}/truncated_after": float(after.truncated(name)),
    }

"""Mean reward on held-out problems during training."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from kitchen.errors import DataError
from kitchen.ports import Future, Sampler, Tokenizer, TrainingSession, start
from stages.chat.template import DEFAULT_RENDERING, PromptRendering
from stages.evaluate.selection import HeldOutMeasures, HeldOutStage
from stages.rl.rollout_eval import greedy_rollouts
from stages.rl.rollouts import Rollout, RolloutConfig, Rollouts
from stages.tasks.tasks import Tasks


class MeasureReward(HeldOutStage):
    """Submit one greedy rollout per held-out problem for its reward, without waiting.

    The first `rows` problems of each held-out set are used, the same ones each time.
    """

    measures = ("reward", "reward/", "rewards/", "truncated", "failed")
    config: RolloutConfig
    render: PromptRendering = DEFAULT_RENDERING
    rows: int = 64

    def run(
        self, session: TrainingSession, tokenizer: Tokenizer, tasks: Tasks
    ) -> Future[HeldOutMeasures]:
        tasks = first_problems(tasks, self.rows)
        return start(self._measure(session.snapshot(), tokenizer, tasks))

    async def _measure(
        self, snapshot: Future[Sampler], tokenizer: Tokenizer, tasks: Tasks
    ) -> HeldOutMeasures:
        sampler = await snapshot
        return reward_measures(
            await greedy_rollouts(sampler, tokenizer, tasks, self.config, self.render)
        )


def first_problems(tasks: Tasks, rows: int) -> Tasks:
    """Return the tasks with the first problems of each held-out set; raises DataError if none."""
    most = min(rows, sys.maxsize)
    held_out = {name: list(islice(problems, most)) for name, problems in tasks.held_out.items()}
    if not any(held_out.values()):
        raise DataError(
            "an evaluation during training needs held-out problems, and there are none: hold some "
            "out (reading.held_out, reading.test), or set eval_every=0"
        )
    return replace(tasks, held_out=held_out)


def reward_measures(rollouts: Mapping[str, Rollouts]) -> HeldOutMeasures:
    """Return means over all held-out problems: of the reward, by set, and of each of its parts."""
    by_set = {name: list(rollouts_of_set.all()) for name, rollouts_of_set in rollouts.items()}
    everything = list(chain.from_iterable(by_set.values()))
    metrics = _means("reward", everything)
    if len(by_set) > 1:
        for name, of_set in by_set.items():
            metrics |= _means(f"reward/{name}", of_set)
    parts = dict.fromkeys(chain.from_iterable(rollout.parts for rollout in everything))
    for part in parts:
        values = [rollout.parts[part] for rollout in everything if part in rollout.parts]
        metrics[f"rewards/{part}"] = float(np.mean(values))
    metrics["truncated"] = float(np.mean([rollout.truncated for rollout in everything]))
    metrics["failed"] = float(np.mean([rollout.failed for rollout in everything]))
    return HeldOutMeasures(metrics)


def _means(name: str, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the mean reward of the rollouts that have one, if there are any."""
    rewards = [rollout.reward for rollout in rollouts if rollout.rewarded]
    return {name: float(np.mean(rewards))} if rewards else {}

"""The judge's preference on held-out problems during training."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from kitchen.ports import Future, Sampler, Tokenizer, TrainingSession, start
from stages.chat.template import DEFAULT_RENDERING, PromptRendering
from stages.evaluate.selection import HeldOutMeasures, HeldOutStage
from stages.judge.judge import Judge
from stages.judge.judge_rewards import prefers_new
from stages.rl.held_out_reward import MeasureReward, first_problems, reward_measures
from stages.rl.rollout_eval import PolicyBefore, greedy_rollouts
from stages.rl.rollouts import RolloutConfig, Rollouts
from stages.tasks.tasks import Tasks


class MeasurePreference(HeldOutStage):
    """Submit held-out answers for the judge's preference for them over the initial ones.

    The first `rows` problems of each held-out set are answered greedily, the same ones each time.
    """

    measures = ("preferred", "preferred/", "unread", *MeasureReward.measures)
    config: RolloutConfig
    has_true_rewards: bool = True  # whether to measure the original rewards too
    render: PromptRendering = DEFAULT_RENDERING
    rows: int = 64

    def run(
        self,
        session: TrainingSession,
        tokenizer: Tokenizer,
        tasks: Tasks,
        judge: Judge,
        before: PolicyBefore,
    ) -> Future[HeldOutMeasures]:
        tasks = first_problems(tasks, self.rows)
        return start(self._measure(session.snapshot(), tokenizer, tasks, judge, before))

    async def _measure(
        self,
        snapshot: Future[Sampler],
        tokenizer: Tokenizer,
        tasks: Tasks,
        judge: Judge,
        before: PolicyBefore,
    ) -> HeldOutMeasures:
        sampler = await snapshot
        rollouts = await greedy_rollouts(sampler, tokenizer, tasks, self.config, self.render)
        rewards = reward_measures(rollouts).metrics if self.has_true_rewards else {}
        judged = await self._judge_all(judge, tokenizer, tasks, rollouts, before)
        return HeldOutMeasures({**rewards, **preference_metrics(judged)})

    async def _judge_all(
        self,
        judge: Judge,
        tokenizer: Tokenizer,
        tasks: Tasks,
        rollouts: Mapping[str, Rollouts],
        before: PolicyBefore,
    ) -> dict[str, list[float | None]]:
        """Return the preferences by set; None for an answer that the judge cannot read."""
        tokenizer = self.render.tokenizer(tokenizer)
        judged = dict[str, list[float | None]]()
        for name, problems in tasks.held_out.items():
            new = [each.text if each.complete else None for each in rollouts[name].all()]
            old = before.answers[name][: len(new)]
            answers = zip(problems, new, old, strict=True)
            judged[name] = await asyncio.gather(
                *(prefers_new(judge, tokenizer, *row) for row in answers)
            )
        return judged


def preference_metrics(judged: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
    """Return the mean preference over all held-out answers and by set, and the unread share."""
    everything = list(chain.from_iterable(judged.values()))
    metrics = _means("preferred", everything)
    if len(judged) > 1:
        for name, of_set in judged.items():
            metrics |= _means(f"preferred/{name}", of_set)
    return {**metrics, "unread": everything.count(None) / len(everything)}


def _means(name: str, judged: Sequence[float | None]) -> dict[str, float]:
    """Return the mean of the preferences that the judge has, if there are any."""
    read = [preference for preference in judged if preference is not None]
    return {name: float(np.mean(read))} if read else {}

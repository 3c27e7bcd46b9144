"""How well weights play held-out problems, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kitchen.ports import BlobStore, Sampler, Tokenizer, TrainingClient
from kitchen.stage import Stage
from kitchen.statistics.intervals import paired_bootstrap, paired_permutation
from kitchen.types import Metrics, Samples, Table
from stages.evaluate.reference import open_sampler
from stages.rl.rollouts import RolloutConfig, RolloutRunner, Rollouts
from stages.tasks.tasks import Tasks
from stages.train.session import FinalWeights


@dataclass(frozen=True)
class Played:
    """The reward of each held-out problem, greedily, by set; a rollout that failed has 0."""

    rewards: Mapping[str, tuple[float, ...]]
    failed: Mapping[str, int]  # rollouts of each set
    answers: Mapping[str, tuple[str | None, ...]]  # None: it failed, or was cut

    def cut(self, name: str) -> int:
        """Rollouts of a set that did not fail, and have an answer that was cut."""
        return self.answers[name].count(None) - self.failed[name]


@dataclass(frozen=True)
class PlayedBefore(Played):
    """By the model as it came."""


@dataclass(frozen=True)
class PlayedAfter(Played):
    """By the weights that were saved."""


class PlayBase(Stage):
    """What the model as it came makes of the held-out problems."""

    memoize = True
    model: str
    how: RolloutConfig

    async def run(
        self,
        client: TrainingClient,
        tokenizer: Tokenizer,
        tasks: Tasks,
        blobs: BlobStore | None = None,
    ) -> tuple[PlayedBefore, Samples]:
        found, shown = await played(
            open_sampler(self.model, client, blobs), tokenizer, tasks, self.how, "before"
        )
        return PlayedBefore(found.rewards, found.failed, found.answers), shown


class PlayWeights(Stage):
    """What the saved weights make of the held-out problems."""

    memoize = True
    how: RolloutConfig

    async def run(
        self, client: TrainingClient, tokenizer: Tokenizer, tasks: Tasks, weights: FinalWeights
    ) -> tuple[PlayedAfter, Samples]:
        found, shown = await played(client.sampler(weights), tokenizer, tasks, self.how, "after")
        return PlayedAfter(found.rewards, found.failed, found.answers), shown


async def played(
    sampler: Sampler, tokenizer: Tokenizer, tasks: Tasks, how: RolloutConfig, when: str
) -> tuple[Played, Samples]:
    """One greedy rollout of each problem; the sampler is closed."""
    player, found = RolloutRunner(sampler, tokenizer, how, temperature=0.0), dict[str, Rollouts]()
    try:
        for name, some in tasks.held_out.items():
            found[name] = await player.groups(some, 1, [0])
    finally:
        sampler.close()
    every = {name: list(one.all()) for name, one in found.items()}
    return Played(
        {name: tuple(each.reward for each in some) for name, some in every.items()},
        {name: sum(bool(each.failed) for each in some) for name, some in every.items()},
        {
            name: tuple(None if each.failed or each.truncated else each.text for each in some)
            for name, some in every.items()
        },
    ), Samples(
        tuple(
            {
                "when": when,
                "set": name,
                "text": each.text,
                "reward": each.reward,
                "parsed": each.parsed,
                "truncated": each.truncated,
                "failed": each.failed,
            }
            for name, some in every.items()
            for each in some
        )
    )


class ComparePlayed(Stage):
    """Mean reward before and after, with a paired bootstrap, set by set."""

    seed: int = 0

    def run(self, before: PlayedBefore, after: PlayedAfter) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), list[tuple[str, ...]]()
        for name, now in after.rewards.items():
            was = before.rewards[name]
            gain = paired_bootstrap(was, now, self.seed)
            metrics |= {
                f"{name}/reward_before": float(np.mean(was)),
                f"{name}/reward_after": float(np.mean(now)),
                f"{name}/reward_gain": gain.estimate,
                f"{name}/reward_gain_low": gain.low,
                f"{name}/reward_gain_p": paired_permutation(was, now, self.seed),
                f"{name}/failed_before": float(before.failed[name]),
                f"{name}/failed_after": float(after.failed[name]),
                f"{name}/truncated_before": float(before.cut(name)),
                f"{name}/truncated_after": float(after.cut(name)),
            }
            rows.append(
                (
                    name,
                    str(len(now)),
                    f"{np.mean(was):.3f}",
                    f"{np.mean(now):.3f}",
                    gain.format(sign=True),
                )
            )
        columns = ("held-out set", "n", "before", "after", "difference")
        return metrics, Table("Mean reward, greedily, 95 % intervals", columns, tuple(rows))

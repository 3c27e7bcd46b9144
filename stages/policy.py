"""Policy gradients on groups of rollouts: advantages, the data of an update, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kitchen.losses import named
from kitchen.ports import BlobStore, TrainingClient
from kitchen.stage import Stage
from kitchen.types import Array, Batch, Datum, Floats, LossOutput, Metrics, Stepped
from kitchen.weights import find_weights
from stages.optimise import LearningRate, summed
from stages.rollouts import Episode, Rollout, Rollouts, alive, is_constant
from stages.scoring import sampler_of, scores

PolicyLossName = Literal["importance_sampling", "ppo", "cispo", "dro"]
AdvantageName = Literal["centred", "normalised", "leave_one_out"]


@dataclass(frozen=True)
class ReferenceScores:
    """What a reference gives each token of the episodes of a batch, in their order; none without a penalty."""

    logprobs: tuple[Floats, ...] = ()  # each (T,) nats


@dataclass(frozen=True)
class PolicyData:
    """The data of one batch of rollouts; empty where no group has anything to teach."""

    data: tuple[Datum, ...]


class ScoreRollouts(Stage):
    """Ask a reference for its log-probabilities of the rollouts, if straying from it costs anything."""

    reference: str  # a name of weights
    penalty: float

    async def run(self, client: TrainingClient, rollouts: Rollouts, blobs: BlobStore | None = None) -> ReferenceScores:
        if not self.penalty:
            return ReferenceScores()
        asked = [one.tokens for one in episodes_of(rollouts)]
        return ReferenceScores(tuple(await scores(sampler_of(self.reference, client, blobs), asked)))

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.reference, client, blobs)


def episodes_of(rollouts: Rollouts) -> list[Episode]:
    return [one for each in rollouts.all() for one in each.episodes]


class PolicyUpdate(Stage):
    """Rollouts to data: each token the policy chose gets its rollout's advantage, less what straying costs.

    Advantages compare the rollouts of one problem: the reward less their mean (GRPO without the division; Liu et al.,
    2025, arXiv:2503.20783), that divided by their standard deviation (Shao et al., 2024, arXiv:2402.03300), or the
    reward less the mean of the others (Ahmadian et al., 2024, arXiv:2402.14740). Groups all of one reward are left out.
    The penalty of a token is -c · (log pi - log ref), and that of each later one times discount^distance. All is
    divided by the number of tokens that were chosen, so that the loss is a mean over them.
    """

    advantages: AdvantageName = "centred"
    penalty: float = 0.0  # c, per nat
    discount: float = 0.0  # of the penalties of later tokens; 0: a token pays for itself alone
    weighted: bool = False  # say in "weights" too, for a loss of one's own, what share of the mean each token is

    def run(self, rollouts: Rollouts, reference: ReferenceScores) -> PolicyData:
        left, found = iter(reference.logprobs), list[tuple[Episode, Array]]()
        for group in rollouts.groups:
            if is_constant(group) and not self.penalty:
                continue
            played = alive(group)  # the others have no episodes
            for rollout, worth in zip(played, advantages(played, self.advantages), strict=True):
                for one in rollout.episodes:
                    straying = self._paid(one, next(left)) if self.penalty else 0.0
                    found.append((one, (worth + straying) * one.acted))
        chosen = sum(int(one.acted.sum()) for one, _ in found)
        return PolicyData(tuple(self._datum(one, each / chosen, chosen) for one, each in found))

    def _datum(self, one: Episode, worth: Array, chosen: int) -> Datum:
        weights = {"weights": one.acted / chosen} if self.weighted else {}
        return one.datum(logprobs=one.logprobs, advantages=worth, **weights)

    def _paid(self, episode: Episode, reference: Floats) -> Array:
        """(T,) what straying costs each token and those after it, as a negative number."""
        cost = np.where(episode.acted, -self.penalty * (episode.logprobs - np.nan_to_num(reference)), 0.0)
        for at in range(len(cost) - 2, -1, -1):
            cost[at] += self.discount * cost[at + 1]
        return cost


def advantages(group: Sequence[Rollout], how: AdvantageName) -> Array:
    """(G,) of the rollouts of one problem."""
    rewards = np.array([rollout.reward for rollout in group], np.float64)
    if len(rewards) < 2:
        return np.zeros(len(rewards))
    centred: Array = rewards - rewards.mean()
    if how == "leave_one_out":
        centred *= len(rewards) / (len(rewards) - 1)
    elif how == "normalised" and rewards.std() > 0:
        centred /= rewards.std()
    return centred


class Minibatches(Stage):
    """One batch of rollouts in `count` optimiser steps, or fewer where it has fewer sequences."""

    count: int

    def run(self, policy: PolicyData) -> Iterable[Batch]:
        count = min(self.count, len(policy.data))
        return [Batch(policy.data[at::count]) for at in range(count)]


class ReportPolicy(Stage):
    """Publish the loss, and how far the policy is from the one that acted.

    KL of acting to trained policy by the means of q - p and of (q - p)² / 2, q and p the log-probabilities of the
    tokens that were chosen (Schulman, 2020, "Approximating KL divergence", k1 and k2); the entropy by the mean of -q.
    """

    loss: str = "importance_sampling"
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named(self.loss, self.options)

    def run(self, batch: Batch, output: LossOutput, stepped: Stepped, rate: LearningRate) -> Metrics:
        live = [d.loss_inputs.get("weights", d.loss_inputs["advantages"]) != 0 for d in batch.data]
        acted = np.concatenate([d.loss_inputs["logprobs"][on] for d, on in zip(batch.data, live, strict=True)])
        now = np.concatenate([lp[on] for lp, on in zip(output.logprobs, live, strict=True)])
        options = named(self.loss, self.options)[1]
        low, high = options.get("clip_low_threshold", 0.0), options.get("clip_high_threshold", float("inf"))
        away, count = (acted - now).astype(np.float64), max(len(now), 1)
        clipped = (np.exp(-away) < low) | (np.exp(-away) > high)
        return Metrics(
            **summed(output.metrics), learning_rate=rate.value, grad_norm=stepped.metrics["grad_norm"],
            kl_sampler_v1=float(away.sum()) / count, kl_sampler_v2=float((away**2).sum()) / count / 2,
            entropy=-float(acted.sum()) / count, clip_fraction=float(clipped.sum()) / count,
            trained_tokens=float(len(now)))

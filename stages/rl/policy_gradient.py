"""Policy gradients on groups of rollouts: advantages, the data of an update, and what it says of
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import Field

from kitchen.backend.losses import find_loss
from kitchen.errors import ConfigError, RunFailed, check_name
from kitchen.stage import Stage
from kitchen.types import Array, Batch, Datum, Floats, LossOutput, Metrics, Stepped
from stages.evaluate.reference import Reference, score_sequences
from stages.rl.rollouts import Episode, Rollout, Rollouts, TrainingExample, alive, is_constant
from stages.train.optim import LearningRate, summed_metrics

PolicyLossName = Literal["importance_sampling", "ppo", "cispo", "dro"]
AdvantageName = Literal["centred", "normalised", "leave_one_out"]
Discount = Annotated[float, Field(ge=0, le=1)]
_DIVIDED = ("advantages", "weights")
# said of a chosen token instead of 0, which says that nobody chose it
_CERTAIN = -float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class ReferenceScores:
    """What a reference gives each token of the episodes of a batch, in their order."""

    logprobs: tuple[Floats, ...]  # each (T,) nats


@dataclass(frozen=True)
class PolicyData:
    """What a batch of rollouts teaches; empty where no group has anything to teach."""

    lessons: tuple[TrainingExample, ...]  # their numbers are not divided by that of the tokens yet


class ScoreRollouts(Stage):
    """Ask a reference for its log-probabilities of the rollouts.

    `kl_reference` is the mean of log(policy / reference) over the tokens that the policy chose,
    nats.
    """

    async def run(
        self, reference: Reference, rollouts: Rollouts
    ) -> tuple[ReferenceScores, Metrics]:
        found = await score_sequences(reference, [one.tokens for one in episodes_of(rollouts)])
        return straying(rollouts, found, "reference")


def straying(
    rollouts: Rollouts, found: Sequence[Floats], what: str
) -> tuple[ReferenceScores, Metrics]:
    """What a reference gives each token, and how far on average the policy is from it."""
    apart = [
        (one.logprobs - each)[one.acted]
        for one, each in zip(episodes_of(rollouts), found, strict=True)
    ]
    if any(np.isnan(each).any() for each in apart):
        raise RunFailed(
            f"the {what} gave no log-probability to a token that the policy chose, so that nobody "
            "knows "
            "how far that strayed"
        )
    metrics = {f"kl_{what}": float(np.concatenate(apart).mean(dtype=np.float64))} if apart else {}
    return ReferenceScores(tuple(found)), Metrics(metrics)


def episodes_of(rollouts: Rollouts) -> list[Episode]:
    return [one for each in rollouts.all() for one in each.episodes]


class PolicyUpdate(Stage):
    """Rollouts to data: each token the policy chose gets its rollout's advantage and what straying
    costs.

    Advantages compare the rollouts of one problem: the reward less their mean (GRPO without the
    division; Liu et al., 2025, arXiv:2503.20783), that divided by their standard deviation (Shao et
    al., 2024, arXiv:2402.03300), or the reward less the mean of the others (Ahmadian et al., 2024,
    arXiv:2402.14740). Groups all of one reward are left out. What a token's straying costs is -c ·
    (log pi - log ref), and that of each later one times discount^distance.
    """

    advantages: AdvantageName = "centred"
    penalty: float = 0.0  # c, per nat
    discount: float = 0.0  # of the penalties of later tokens; 0: a token pays for itself alone
    # say in "weights" too, for a custom loss, which tokens were chosen
    weighted: bool = False

    def __post_init__(self) -> None:
        check_name("advantages", self.advantages, get_args(AdvantageName))
        if self.discount and not self.penalty:
            raise ConfigError(
                f"a discount of {self.discount} is of what straying costs later tokens, and it "
                "costs "
                "nothing: set a penalty (kl_penalty), or leave the discount out"
            )

    def run(self, rollouts: Rollouts, reference: ReferenceScores | None = None) -> PolicyData:
        if self.penalty and reference is None:
            raise ConfigError(
                f"{self}: a penalty needs a reference, and ScoreRollouts before this stage"
            )
        left, found = iter(reference.logprobs if reference else ()), list[TrainingExample]()
        for group in rollouts.groups:
            if is_constant(group) and not self.penalty:
                continue
            played = alive(group)  # the others have no episodes
            for rollout, worth in zip(played, advantages(played, self.advantages), strict=True):
                for one in rollout.episodes:
                    straying = (
                        strayed(one, next(left), self.penalty, self.discount)
                        if self.penalty
                        else 0.0
                    )
                    found.append(_lesson(one, (worth + straying) * one.acted, self.weighted))
        return PolicyData(tuple(found))


def _lesson(one: Episode, worth: Array, weighted: bool) -> TrainingExample:
    weights = {"weights": one.acted} if weighted else {}
    chosen = np.where(one.acted, np.minimum(one.logprobs, _CERTAIN), 0.0)
    return one.lesson(logprobs=chosen, advantages=worth, **weights)


def strayed(episode: Episode, reference: Floats, penalty: float, discount: float) -> Array:
    """(T,) what straying costs each token and those after it, as a negative number."""
    cost = np.where(episode.acted, -penalty * (episode.logprobs - reference), 0.0)
    for at in range(len(cost) - 2, -1, -1):
        cost[at] += discount * cost[at + 1]
    return cost


def advantages(group: Sequence[Rollout], how: AdvantageName) -> Array:
    """(G,) of the rollouts of one problem."""
    rewards = np.array([rollout.reward for rollout in group], np.float64)
    if is_constant(group):  # whose mean may be a rounding away from all of them
        return np.zeros(len(rewards))
    centred: Array = rewards - rewards.mean()
    if how == "leave_one_out":
        centred *= len(rewards) / (len(rewards) - 1)
    elif how == "normalised":
        centred /= rewards.std()
    return centred


class Minibatches(Stage):
    """One batch of rollouts in `count` optimiser steps, or fewer where it has fewer sequences.

    Advantages and weights are divided by the number of tokens that were chosen in a step: its loss
    is a mean over them.
    """

    count: int

    def run(self, policy: PolicyData) -> Iterable[Batch]:
        count = min(self.count, len(policy.lessons))
        return [mean_of(policy.lessons[at::count]) for at in range(count)]


def mean_of(some: Sequence[TrainingExample]) -> Batch:
    """Their data, with a loss that is a mean over the tokens that the policy chose."""
    chosen = sum(count for _, count in some)
    return Batch(
        tuple(
            Datum(
                datum.tokens,
                {
                    name: (each / chosen).astype(np.float32) if name in _DIVIDED else each
                    for name, each in datum.loss_inputs.items()
                },
            )
            for datum, _ in some
        )
    )


class ReportPolicy(Stage):
    """Publish the loss, and how far the policy is from the one that acted.

    KL of acting to trained policy by the means of q - p and of (q - p)² / 2, q and p the
    log-probabilities of the tokens that were chosen (Schulman, 2020, "Approximating KL divergence",
    k1 and k2); the entropy by the mean of -q.
    """

    loss: str = "importance_sampling"
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        find_loss(self.loss, self.options)

    def run(
        self, batch: Batch, output: LossOutput, stepped: Stepped, rate: LearningRate
    ) -> Metrics:
        live = [datum.loss_inputs["logprobs"] != 0 for datum in batch.data]
        acted = np.concatenate(
            [d.loss_inputs["logprobs"][on] for d, on in zip(batch.data, live, strict=True)]
        )
        now = np.concatenate([lp[on] for lp, on in zip(output.logprobs, live, strict=True)])
        options = find_loss(self.loss, self.options)[1]
        low, high = (
            options.get("clip_low_threshold", 0.0),
            options.get("clip_high_threshold", float("inf")),
        )
        away, count = (acted - now).astype(np.float64), max(len(now), 1)
        clipped = (np.exp(-away) < low) | (np.exp(-away) > high)
        return Metrics(
            {**stepped.metrics, **summed_metrics(output.metrics)},
            learning_rate=rate.value,
            kl_sampler_v1=float(away.sum()) / count,
            kl_sampler_v2=float((away**2).sum()) / count / 2,
            entropy=-float(acted.sum()) / count,
            clip_fraction=float(clipped.sum()) / count,
            trained_tokens=float(len(now)),
        )

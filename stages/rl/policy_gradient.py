"""Policy gradients on groups of rollouts: advantages, KL penalties, minibatches and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import Field

from kitchen.backend.losses import find_loss
from kitchen.config.user_functions import (
    FunctionName,
    call_in_run,
    check_positional,
    import_function,
    is_function_name,
)
from kitchen.errors import ConfigError, Diverged, RunFailed, did_you_mean
from kitchen.stage import Need, Stage
from kitchen.types import Array, Batch, Datum, Floats, LossOutput, Metrics, OptimStepResult
from stages.evaluate.reference import PROMPT_LOGPROBS, Reference, check_logprobs, score_sequences
from stages.rl.rollouts import (
    Episode,
    Rollout,
    Rollouts,
    TrainingExample,
    is_constant,
    succeeded,
)
from stages.train.optim import LearningRate, summed_metrics
from stages.train.schedules import PlannedSteps

PolicyLossName = Literal["importance_sampling", "ppo", "cispo", "gspo", "dro"]
ADVANTAGES = "advantages"  # the setting
AdvantageName = Literal["centred", "normalised", "leave_one_out"]
AdvantageSetting = AdvantageName | FunctionName
DiscountFactor = Annotated[float, Field(ge=0, le=1)]
_MAX_ROLLOUTS = 1_000_000
_DIVIDED = ("advantages", "weights")
# replaces a sampled token's log-probability of exactly 0, since 0 marks tokens not sampled
_CERTAIN = -float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class RolloutLogprobs:
    """Log-probabilities of a batch's episodes, in order, by the reference model or the teacher."""

    logprobs: tuple[Floats, ...]  # each (T,) nats


@dataclass(frozen=True)
class PolicyData:
    """Training examples of a batch of rollouts; empty if the rewards of every group are equal."""

    # advantages and weights are not divided by the number of tokens yet: Minibatches does that
    examples: tuple[TrainingExample, ...]


def check_batch(batch_size: int, group: int) -> None:
    """Raise ConfigError for more rollouts per batch than fit in memory."""
    if batch_size * group > _MAX_ROLLOUTS:
        raise ConfigError(
            f"batch_size={batch_size} times group={group} is more than {_MAX_ROLLOUTS:,} rollouts "
            "per batch, which are sampled at once: lower one of them"
        )


def check_group(group: int, kl_penalty: float, advantages: str = "centred") -> None:
    """Raise ConfigError for groups of one rollout, whose advantages are all 0.

    Those by a function of the user need not compare rollouts.
    """
    if group == 1 and not kl_penalty and not is_function_name(advantages):
        raise ConfigError(
            "group=1 gives every rollout an advantage of 0, because advantages compare the "
            "rollouts of a group. Set group to 2 or more."
        )


class ComputeReferenceLogprobs(Stage):
    """Compute the reference model's log-probabilities of the rollouts.

    `kl_reference` is the mean of log(policy / reference) over the sampled tokens, nats.
    """

    async def run(
        self, reference: Reference, rollouts: Rollouts
    ) -> tuple[RolloutLogprobs, Metrics]:
        sequences = [episode.tokens for episode in rollouts.episodes()]
        return reference_kl(rollouts, await score_sequences(reference, sequences), "reference")

    def needs(self) -> Iterable[Need]:
        return [PROMPT_LOGPROBS]


def reference_kl(
    rollouts: Rollouts, logprobs: Sequence[Floats], name: str
) -> tuple[RolloutLogprobs, Metrics]:
    """Return the log-probabilities, and the mean KL of the policy to them as metric `kl_<name>`.

    Raises an error for log-probabilities of sampled tokens that are not finite, or above 0:
    Diverged for the policy's, BackendError for the others.
    """
    log_ratios = list[Array]()
    for episode, reference in zip(rollouts.episodes(), logprobs, strict=True):
        check_logprobs(episode.logprobs[episode.action_mask], "the policy", Diverged)
        check_logprobs(reference[episode.action_mask], f"the {name}")
        log_ratios.append((episode.logprobs - reference)[episode.action_mask])
    metrics = Metrics()
    if log_ratios:
        metrics[f"kl_{name}"] = float(np.concatenate(log_ratios).mean(dtype=np.float64))
    return RolloutLogprobs(tuple(logprobs)), metrics


class ComputeAdvantages(Stage):
    """Turn rollouts into training examples: each sampled token has an advantage and a KL penalty.

    Advantages compare the rewards r of one problem's rollouts:

    - `centred`: r - mean (Dr. GRPO; Liu et al., 2025, arXiv:2503.20783)
    - `normalised`: (r - mean) / standard deviation (GRPO; Shao et al., 2024, arXiv:2402.03300)
    - `leave_one_out`: r - mean of the others (RLOO; Ahmadian et al., 2024, arXiv:2402.14740)
    - `MODULE:function`, a function of the user, called with the rewards, (G,) float64: it returns
      the advantages, (G,) finite numbers

    Groups whose rewards are all equal, up to rounding (a relative difference of at most 1e-12), are
    left out, and so are those whose advantages by a function are all 0. The KL penalty of a token
    is -c · (log pi - log ref), plus the penalty of each later token times discount^distance.
    """

    advantages: str = "centred"  # an AdvantageName, or MODULE:function
    penalty: float = 0.0  # c, per nat
    discount: float = 0.0  # of later tokens' penalties; 0 for only the token's own
    weighted: bool = False  # also mark the sampled tokens in "weights", for a custom loss
    # leave out rollouts with a truncated answer; their rewards count in the advantages of others
    mask_truncated: bool = False
    sequence_ratio: bool = False  # also mark them in "sequence_ratio_mask", for gspo

    @classmethod
    def for_loss(
        cls, loss: str, advantages: str, penalty: float, discount: float, mask_truncated: bool
    ) -> ComputeAdvantages:
        """Return the stage with the inputs that a policy loss reads."""
        return cls(advantages, penalty, discount, loss == "dro", mask_truncated, loss == "gspo")

    def __post_init__(self) -> None:
        check_advantages(self.advantages)
        if self.discount and not self.penalty:
            raise ConfigError(
                f"a discount of {self.discount} applies to the KL penalties of later tokens, but "
                "there is no KL penalty: set kl_penalty, or leave the discount out."
            )

    def run(self, rollouts: Rollouts, reference: RolloutLogprobs | None = None) -> PolicyData:
        if self.penalty and reference is None:
            raise ConfigError(
                f"{self}: a KL penalty needs a reference model: add ComputeReferenceLogprobs "
                "before this stage."
            )
        logprobs = _rewarded_logprobs(rollouts, reference.logprobs if reference else ())
        examples = list[TrainingExample]()
        for group in rollouts.groups:
            rewarded = succeeded(group)
            values = advantages(rewarded, self.advantages)
            if not values.any() and not self.penalty:
                continue
            for rollout, advantage in zip(rewarded, values, strict=True):
                for episode in rollout.episodes:
                    cost: Array | float = 0.0
                    if self.penalty:
                        cost = kl_penalties(episode, next(logprobs), self.penalty, self.discount)
                    if self.mask_truncated and rollout.truncated:
                        continue
                    token_advantages = (advantage + cost) * episode.action_mask
                    examples.append(_example(episode, token_advantages, self._marks()))
        return PolicyData(tuple(examples))

    def _marks(self) -> Sequence[str]:
        """Return the names of the inputs that mark the sampled tokens."""
        marks = {"weights": self.weighted, "sequence_ratio_mask": self.sequence_ratio}
        return [name for name, is_wanted in marks.items() if is_wanted]


def _rewarded_logprobs(rollouts: Rollouts, logprobs: Sequence[Floats]) -> Iterator[Floats]:
    """Iterate over the log-probabilities of the episodes whose rollouts have a reward."""
    owners = chain.from_iterable(repeat(each, len(each.episodes)) for each in rollouts.all())
    return (values for owner, values in zip(owners, logprobs, strict=False) if owner.rewarded)


def _example(episode: Episode, advantages: Array, marks: Sequence[str]) -> TrainingExample:
    marked = dict.fromkeys(marks, episode.action_mask)
    logprobs = np.where(episode.action_mask, np.minimum(episode.logprobs, _CERTAIN), 0.0)
    return episode.training_example(logprobs=logprobs, advantages=advantages, **marked)


def kl_penalties(episode: Episode, reference: Floats, penalty: float, discount: float) -> Array:
    """Return the KL penalty of each token, (T,), with the discounted ones of later tokens."""
    cost = np.where(episode.action_mask, -penalty * (episode.logprobs - reference), 0.0)
    for at in range(len(cost) - 2, -1, -1):
        cost[at] += discount * cost[at + 1]
    return cost


def check_advantages(name: str) -> None:
    """Raise ConfigError for a name that is no AdvantageName and no function of the user."""
    if is_function_name(name):
        check_positional(ADVANTAGES, name, import_function(ADVANTAGES, name), "f(rewards)")
    elif name not in (known := get_args(AdvantageName)):
        near = did_you_mean(name, known)
        raise ConfigError(f"{ADVANTAGES}={name!r} is unknown; {near} (or a MODULE:function)")


def advantages(group: Sequence[Rollout], kind: str) -> Array:
    """Return the advantages, (G,), of the rollouts of one problem."""
    rewards = np.array([rollout.reward for rollout in group], np.float64)
    if is_function_name(kind):
        return _own_advantages(kind, rewards) if len(rewards) else rewards
    if is_constant(group):  # differences by rounding do not count, and must not be divided by
        return np.zeros(len(rewards))
    centred: Array = rewards - rewards.mean()
    if kind == "leave_one_out":
        centred *= len(rewards) / (len(rewards) - 1)
    elif kind == "normalised":
        centred /= rewards.std()
    return centred


def _own_advantages(name: str, rewards: Array) -> Array:
    """Return the advantages, (G,), by a user's function; raises RunFailed for another result."""
    function = import_function(ADVANTAGES, name)
    result = call_in_run(ADVANTAGES, name, function, rewards.copy())
    try:
        values = np.asarray(result, np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != rewards.shape or not np.isfinite(values).all():
        raise RunFailed(
            f"{ADVANTAGES}={name} returned {result!r:.200} for the rewards {rewards.tolist()}; it "
            f"must return {len(rewards)} finite numbers, one per reward"
        )
    return values


class Minibatches(Stage):
    """Split a batch of rollouts into `count` optimiser steps, or fewer if it has fewer sequences.

    Advantages and weights are divided by the number of sampled tokens in a step, so that its loss
    is a mean over them.
    """

    count: int

    def run(self, policy: PolicyData) -> Iterable[Batch]:
        count = min(self.count, len(policy.examples))
        return [mean_of(policy.examples[at::count]) for at in range(count)]

    def preview(self, batches: PlannedSteps) -> PlannedSteps:
        return PlannedSteps(batches.count * self.count)


def mean_of(examples: Sequence[TrainingExample]) -> Batch:
    """Return a batch whose loss is a mean over the sampled tokens of these examples."""
    sampled_tokens = sum(count for _, count in examples)

    def divided(name: str, values: Array) -> Array:
        return (values / sampled_tokens).astype(np.float32) if name in _DIVIDED else values

    data: list[Datum] = []
    for datum, _ in examples:
        inputs = {name: divided(name, values) for name, values in datum.loss_inputs.items()}
        data.append(Datum(datum.tokens, inputs))
    return Batch(tuple(data))


def _sequence_means(values: Array, lengths: Sequence[int]) -> Array:
    """Replace the values of each sequence's tokens by their mean."""
    parts = np.split(values, np.cumsum(lengths)[:-1])
    return np.concatenate(
        [np.full(len(part), part.mean()) if len(part) else part for part in parts]
    )


class ReportPolicy(Stage):
    """Report the loss, and the KL divergence between the sampling and the trained policy.

    The KL is estimated by the means of q - p and of (q - p)² / 2, q and p the sampling and the
    trained policy's log-probabilities of the sampled tokens (Schulman, 2020, "Approximating KL
    divergence", k1 and k2); the entropy by the mean of -q.
    """

    loss: str = "importance_sampling"
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        find_loss(self.loss, self.options)

    def run(
        self, batch: Batch, output: LossOutput, stepped: OptimStepResult, rate: LearningRate
    ) -> Metrics:
        sampling = [datum.loss_inputs["logprobs"] for datum in batch.data]
        masks = [logprobs != 0 for logprobs in sampling]
        sampled = np.concatenate([lp[mask] for lp, mask in zip(sampling, masks, strict=True)])
        trained = np.concatenate(
            [lp[mask] for lp, mask in zip(output.logprobs, masks, strict=True)]
        )
        difference = (sampled - trained).astype(np.float64)
        log_ratio = -difference
        if self.loss == "gspo":
            log_ratio = _sequence_means(log_ratio, [int(mask.sum()) for mask in masks])
        count = max(len(trained), 1)
        return Metrics(
            {**stepped.metrics, **summed_metrics(output.metrics)},
            learning_rate=rate.value,
            kl_sampler_v1=float(difference.sum()) / count,
            kl_sampler_v2=float((difference**2).sum()) / count / 2,
            entropy=-float(sampled.sum()) / count,
            clip_fraction=self._clipped(np.exp(log_ratio)) / count,
            trained_tokens=float(len(trained)),
        )

    def _clipped(self, ratio: Array) -> float:
        """Count the tokens whose probability ratio the loss clips."""
        options = find_loss(self.loss, self.options)[1]
        low = options.get("clip_low_threshold", 0.0)
        high = options.get("clip_high_threshold", float("inf"))
        return float(((ratio < low) | (ratio > high)).sum())

"""Reinforcement learning: rollouts, policy gradients and their evaluation."""

from stages.rl.dro import Dro, loss_of
from stages.rl.held_out_reward import MeasureReward
from stages.rl.policy_gradient import (
    AdvantageName,
    AdvantageSetting,
    ComputeAdvantages,
    ComputeReferenceLogprobs,
    DiscountFactor,
    Minibatches,
    PolicyData,
    PolicyLossName,
    ReportPolicy,
    check_batch,
    check_group,
)
from stages.rl.rollout_eval import CompareRewards, EvaluateBasePolicy, EvaluateTrainedPolicy
from stages.rl.rollouts import (
    Episode,
    ReportRollouts,
    Rollout,
    RolloutConfig,
    Rollouts,
    SampleRollouts,
    Snapshot,
    StopReason,
    succeeded,
)

__all__ = [
    "AdvantageName",
    "AdvantageSetting",
    "CompareRewards",
    "ComputeAdvantages",
    "ComputeReferenceLogprobs",
    "DiscountFactor",
    "Dro",
    "Episode",
    "EvaluateBasePolicy",
    "EvaluateTrainedPolicy",
    "MeasureReward",
    "Minibatches",
    "PolicyData",
    "PolicyLossName",
    "ReportPolicy",
    "ReportRollouts",
    "Rollout",
    "RolloutConfig",
    "Rollouts",
    "SampleRollouts",
    "Snapshot",
    "StopReason",
    "check_batch",
    "check_group",
    "loss_of",
    "succeeded",
]

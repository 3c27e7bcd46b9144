"""Reinforcement learning: rollouts, policy gradients and their evaluation."""

from stages.rl.dro import Dro
from stages.rl.policy_gradient import (
    Minibatches,
    PolicyData,
    PolicyUpdate,
    ReportPolicy,
    ScoreRollouts,
)
from stages.rl.rollout_eval import ComparePlayed, PlayBase, PlayWeights
from stages.rl.rollouts import ReportRollouts, RollOut, Rollout, RolloutConfig, Rollouts, Snapshot

__all__ = [
    "ComparePlayed",
    "Dro",
    "Minibatches",
    "PlayBase",
    "PlayWeights",
    "PolicyData",
    "PolicyUpdate",
    "ReportPolicy",
    "ReportRollouts",
    "RollOut",
    "Rollout",
    "RolloutConfig",
    "Rollouts",
    "ScoreRollouts",
    "Snapshot",
]

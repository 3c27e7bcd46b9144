"""Reinforcement learning on groups: try each problem several times, and prefer what went better
than the rest.
"""

from collections.abc import Mapping

from pydantic import NonNegativeFloat

from kitchen import Step, for_each, sequence
from recipes._base import TrainingOnRollouts
from stages.evaluate.reference import OpenReference
from stages.rl.dro import loss_of
from stages.rl.policy_gradient import (
    AdvantageName,
    Discount,
    Minibatches,
    PolicyLossName,
    PolicyUpdate,
    ReportPolicy,
    ScoreRollouts,
)
from stages.rl.rollout_eval import ComparePlayed, PlayBase, PlayWeights
from stages.rl.rollouts import ReportRollouts
from stages.tasks.reasoning_gym import load_tasks_stage
from stages.train.optim import ForwardBackward
from stages.train.session import FinalWeights, OpenSession, SaveFinal


class Rl(TrainingOnRollouts):
    """Policy gradient with advantages within groups; the weights that act may lag behind those that
    learn.
    """

    outputs = (FinalWeights,)
    # of an answer: field_f1, exact, math; null: by the data, which may have its own
    reward: str | None = None
    advantages: AdvantageName = "centred"
    loss: PolicyLossName = "importance_sampling"
    # of ppo and cispo: clip_low_threshold, clip_high_threshold; of dro: beta
    loss_options: Mapping[str, float] = {}
    # reward lost per nat that the policy strays from the reference
    kl_penalty: NonNegativeFloat = 0.0
    kl_discount: Discount = 0.0  # of the penalties of later tokens; 0: a token pays for itself
    reference: str | None = None  # weights of any name; null for those that the run begins with

    def workflow(self) -> Step:
        loss, start = (self.loss, self.loss_options), self.reference or self.model
        opened, scored = (
            ([OpenReference(start)], [ScoreRollouts()])
            if self.kl_penalty or self.reference
            else ([], [])
        )
        return sequence(
            load_tasks_stage(self.dataset, self.reading, self.seed, self.rows, self.reward),
            OpenSession(self.model, self.lora),
            *opened,
            PlayBase(self.model, self.playing),
            self.rounds(
                ReportRollouts(),
                *scored,
                PolicyUpdate(
                    self.advantages, self.kl_penalty, self.kl_discount, weighted=self.loss == "dro"
                ),
                for_each(Minibatches(self.updates))(
                    ForwardBackward(*loss_of(*loss)), self.optim, ReportPolicy(*loss)
                ),
            ),
            SaveFinal(),
            PlayWeights(self.playing),
            ComparePlayed(self.seed),
        )

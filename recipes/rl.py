"""Reinforcement learning on groups of rollouts (GRPO): prefer what did better than its group."""

from collections.abc import Mapping

from pydantic import NonNegativeFloat

from kitchen import Step, for_each, sequence
from kitchen.ports import TrainingSession
from recipes._base import RolloutRecipe
from stages import evaluate, rl, tasks, train
from stages.tasks.reasoning_gym import load_tasks_stage


class Rl(RolloutRecipe):
    """Policy gradient with advantages within groups; the weights that sample may lag behind."""

    # reward function: field_f1, exact or math; null to choose by the data, which may have its own
    reward: str | None = None
    # centred: reward - mean of its group; normalised: that / its deviation (GRPO); leave_one_out
    advantages: rl.AdvantageName = "centred"
    loss: rl.PolicyLossName = "importance_sampling"  # policy loss
    # options of the loss: clip_low_threshold and clip_high_threshold of ppo and cispo, beta of dro
    loss_options: Mapping[str, float] = {}
    kl_penalty: NonNegativeFloat = 0.0  # KL penalty to the reference model: reward lost per nat
    # discount of later tokens' KL penalties in a token's advantage; 0 for only its own penalty
    kl_discount: rl.DiscountFactor = 0.0
    # weights of the reference model, by any name; null for the initial weights
    reference: str | None = None

    def workflow(self) -> Step:
        rl.check_group(self.group, self.kl_penalty)
        with_reference = bool(self.kl_penalty or self.reference)
        reference = evaluate.OpenReference(self.reference or self.model)
        loss, options = rl.loss_of(self.loss, self.loss_options)
        batches = tasks.TaskBatches(self.batch_size, self.steps, self.seed)
        stale = (TrainingSession,) if self.policy_lag else ()
        return sequence(
            load_tasks_stage(self.dataset, self.reading, self.seed, self.problems, self.reward),
            train.OpenSession(self.model, self.lora),
            *([reference] if with_reference else []),
            rl.EvaluateBasePolicy(self.model, self.playing),
            for_each(batches, ahead=self.policy_lag, save=self.save_every, stale=stale)(
                rl.Snapshot(),
                rl.SampleRollouts(self.group, self.playing, self.seed),
                rl.ReportRollouts(),
                *([rl.ComputeReferenceLogprobs()] if with_reference else []),
                rl.ComputeAdvantages(
                    self.advantages, self.kl_penalty, self.kl_discount, weighted=self.loss == "dro"
                ),
                for_each(rl.Minibatches(self.updates))(
                    train.ForwardBackward(loss, options),
                    self.optim,
                    rl.ReportPolicy(self.loss, self.loss_options),
                ),
            ),
            train.SaveFinal(),
            rl.EvaluateTrainedPolicy(self.playing),
            rl.CompareRewards(self.seed),
        )

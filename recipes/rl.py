"""Reinforcement learning on groups of rollouts (GRPO): reinforce those that beat their group."""

from collections.abc import Mapping

from pydantic import NonNegativeFloat

from kitchen import Step, for_each, sequence
from kitchen.types import ModelName
from recipes._base import RewardedRecipe
from stages import chat, evaluate, rl, tasks, train


class Rl(RewardedRecipe):
    """Policy gradient with group-relative advantages; the sampling weights may lag behind."""

    rendering: chat.PromptRendering = chat.PromptRendering()
    # centred: reward minus the group's mean (Dr. GRPO); normalised: also divided by the group's
    # standard deviation (GRPO); leave_one_out: reward minus the mean of the others (RLOO); or
    # MODULE:function, called with the rewards of a group
    advantages: rl.AdvantageSetting = "centred"
    mask_truncated: bool = False  # whether rollouts with a truncated answer get no gradient
    loss: rl.PolicyLossName = "importance_sampling"  # policy loss
    # options of the loss: beta of dro; clip_low_threshold and clip_high_threshold of the others
    loss_options: Mapping[str, float] = {}
    kl_penalty: NonNegativeFloat = 0.0  # KL penalty: reward lost per nat of KL to the reference
    # discount factor of the KL penalties of later tokens in a token's advantage; 0: only its own
    kl_discount: rl.DiscountFactor = 0.0
    # reference model, named like `model`; null for the initial weights
    reference: ModelName | None = None

    def workflow(self) -> Step:
        rl.check_group(self.group, self.kl_penalty, self.advantages)
        with_reference = bool(self.kl_penalty or self.reference)
        reference = evaluate.OpenReference(self.reference or self.model, self.model)
        loss, options = rl.loss_of(self.loss, self.loss_options)
        kl = self.kl_penalty, self.kl_discount
        batches = self.until_stopped(tasks.TaskBatches(self.batch_size, self.steps, self.seed))
        return sequence(
            self.sources.stage(),
            train.OpenSession(self.model, self.trainable),
            tasks.checked_prompts(self.reading.bad_rows, self.playing.max_tokens, self.rendering),
            *([reference] if with_reference else []),
            *evaluate.start_exports(self.early_stopping),
            rl.EvaluateBasePolicy(self.model, self.playing, self.rendering),
            for_each(batches, ahead=self.policy_lag, save=self.save_every, stale=self.stale)(
                rl.Snapshot(self.policy_lag),
                rl.SampleRollouts(self.group, self.playing, self.seed, self.rendering),
                rl.ReportRollouts(mask_truncated=self.mask_truncated),
                *([rl.ComputeReferenceLogprobs()] if with_reference else []),
                rl.ComputeAdvantages.for_loss(self.loss, self.advantages, *kl, self.mask_truncated),
                for_each(rl.Minibatches(self.updates))(
                    train.ForwardBackward(loss, options),
                    self.optim,
                    rl.ReportPolicy(self.loss, self.loss_options),
                ),
                self.evaluated(rl.MeasureReward(self.playing, self.rendering, self.eval_rows)),
            ),
            train.SaveFinal(),
            rl.EvaluateTrainedPolicy(self.playing, self.rendering),
            rl.CompareRewards(),
        )

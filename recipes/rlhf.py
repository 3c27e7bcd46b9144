"""Reinforcement learning from human feedback: train a judge or ask one, then train a policy."""

from pydantic import NonNegativeFloat

from kitchen import Step, for_each, sequence
from recipes._base import RewardedRecipe
from stages import chat, evaluate, rl, tasks, train
from stages import judge as judges


class Rlhf(RewardedRecipe):
    """Collect comparisons, train a judge on them, and train a policy on the judge's preferences.

    A judge that is asked as it is (judge.epochs=0) needs no comparisons.
    """

    # data set of comparisons; null to rank sampled answers to `dataset` by their rewards
    preferences: str | None = None
    rendering: chat.PromptRendering = chat.PromptRendering()
    ranking: judges.RankingConfig = judges.RankingConfig()
    judge: judges.JudgeConfig = judges.JudgeConfig()
    kl_penalty: NonNegativeFloat = 0.0  # KL penalty: reward lost per nat of KL to `model`
    best: evaluate.BestConfig = evaluate.BestConfig("held_out_preferred")

    def workflow(self) -> Step:
        rl.check_group(self.group, self.kl_penalty)
        judge, own_answers = self.judge.model or self.model, self.preferences is None
        config, asked = self.judge.with_prompts_of(self.model, self.rendering), self.judge.asked
        rewarded = own_answers and (not asked or self.sources.are_rewarded)
        own_model = [] if judge == self.model else [evaluate.IdentifyWeights(judge, "judge.start")]
        rank = judges.RankAnswers(self.model, self.ranking, self.playing, self.seed, self.rendering)
        batches = self.until_stopped(tasks.TaskBatches(self.batch_size, self.steps, self.seed))
        measured = self.playing, rewarded, self.rendering
        size = self.save_every, self.problems * self.group, self.playing.max_tokens
        return sequence(
            evaluate.IdentifyWeights(self.model, "start"),
            *own_model,
            judges.comparison_source(self.preferences, self.sources, self.ranking, asked),
            judges.CheckReadable(judge, config),
            *([rank, judges.BuildComparisons()] if own_answers and not asked else []),
            *judges.judge_steps(config, judge, self.trainable, self.seed, *size),
            *([] if own_answers and asked else [judges.EvaluateJudge()]),
            train.OpenSession(self.model, self.trainable),
            tasks.checked_prompts(self.reading.bad_rows, self.playing.max_tokens, self.rendering),
            evaluate.OpenReference(self.model),
            *evaluate.start_exports(self.early_stopping),
            rl.EvaluateBasePolicy(self.model, self.playing, self.rendering),
            for_each(batches, ahead=self.policy_lag, save=self.save_every, stale=self.stale)(
                rl.Snapshot(self.policy_lag),
                rl.SampleRollouts(self.group, self.playing, self.seed, self.rendering),
                judges.JudgeRollouts(*measured),
                rl.ReportRollouts(),
                *([rl.ComputeReferenceLogprobs()] if self.kl_penalty else []),
                rl.ComputeAdvantages(penalty=self.kl_penalty),
                for_each(rl.Minibatches(self.updates))(
                    train.ForwardBackward("importance_sampling"), self.optim, rl.ReportPolicy()
                ),
                self.evaluated(judges.MeasurePreference(*measured, self.eval_rows)),
            ),
            train.SaveFinal(),
            rl.EvaluateTrainedPolicy(self.playing, self.rendering),
            *([rl.CompareRewards()] if rewarded else []),
            judges.CompareByJudge(self.rendering),
        )

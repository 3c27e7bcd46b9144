"""Reinforcement learning from preferences: learn to judge answers, and then to give those that the
judge prefers.
"""

from pydantic import NonNegativeFloat

from kitchen import Step, for_each, sequence
from recipes._base import TrainingOnRollouts
from stages.evaluate.reference import IdentifyWeights, OpenReference
from stages.judge.judge import Judging
from stages.judge.judge_rewards import JudgePlayed, JudgeRollouts
from stages.judge.judge_training import CheckReadable, learn_to_judge
from stages.judge.ranked_answers import Ranking, find_comparisons
from stages.rl.policy_gradient import Minibatches, PolicyUpdate, ReportPolicy, ScoreRollouts
from stages.rl.rollout_eval import ComparePlayed, PlayBase, PlayWeights
from stages.rl.rollouts import ReportRollouts
from stages.train.optim import ForwardBackward
from stages.train.session import FinalWeights, OpenSession, SaveFinal


class Rlhf(TrainingOnRollouts):
    """Three phases: comparisons, a judge that learns from them, and a policy that learns from the
    judge.
    """

    outputs = (FinalWeights,)
    # a data set of comparisons; null: own answers to `dataset`, by what they are worth
    preferences: str | None = None
    reward: str | None = None  # that ranks own answers: field_f1, exact, math; null: by the data
    ranking: Ranking = Ranking()
    judge: Judging = Judging()
    # reward lost per nat that the policy strays from where it began
    kl_penalty: NonNegativeFloat = 0.0

    def workflow(self) -> Step:
        ranked, own = (
            (self.model, self.ranking, self.playing, self.rows, self.reward),
            self.preferences is None,
        )
        judge = self.judge.model if self.judge.model != self.model else None
        check = CheckReadable(self.judge.model or self.model, self.judge)
        asked = [IdentifyWeights(judge, "judge.start")] if judge else []
        penalised = [ScoreRollouts()] if self.kl_penalty else []
        return sequence(
            IdentifyWeights(self.model, "start"),
            *asked,
            *find_comparisons(
                self.preferences, self.dataset, self.reading, self.seed, *ranked, check
            ),
            *learn_to_judge(self.judge, self.model, self.lora, self.seed, self.save_every),
            OpenSession(self.model, self.lora),
            OpenReference(self.model),
            PlayBase(self.model, self.playing),
            self.rounds(
                JudgeRollouts(self.playing, own),
                ReportRollouts(),
                *penalised,
                PolicyUpdate(penalty=self.kl_penalty),
                for_each(Minibatches(self.updates))(
                    ForwardBackward("importance_sampling"), self.optim, ReportPolicy()
                ),
            ),
            SaveFinal(),
            PlayWeights(self.playing),
            *([ComparePlayed(self.seed)] if own else []),
            JudgePlayed(self.seed),
        )

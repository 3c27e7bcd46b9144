"""Preference optimisation: make the chosen answer likelier than the rejected one, and stay near the
reference.
"""

from pydantic import NonNegativeFloat, PositiveFloat

from kitchen import Step
from recipes._base import TrainingOnPreferences
from stages.preference.comparisons import LoadComparisons, RenderPairs
from stages.preference.dpo import JudgePairs
from stages.preference.pair_loss import WITHOUT_REFERENCE, PairLoss, PairLossName
from stages.train.session import FinalWeights


class Dpo(TrainingOnPreferences):
    """Pairs of answers; where data has right answers alone, the model's own mistakes are the
    others.
    """

    outputs = (FinalWeights,)
    loss: PairLossName = "sigmoid"
    # how dearly the reference is held; null: 0.1, with loss=simpo 2
    beta: PositiveFloat | None = None
    # share of pairs that may be the wrong way round; with loss=sigmoid
    label_smoothing: NonNegativeFloat = 0.0
    # of loss=simpo, beta times nats per token; null: half of beta
    target_margin: NonNegativeFloat | None = None
    # weight of the chosen answers' own cross-entropy, nats per token
    imitation: NonNegativeFloat = 0.0

    def workflow(self) -> Step:
        loss = PairLoss(
            self.loss, self.beta, self.label_smoothing, self.imitation, self.target_margin
        )
        return self.preferring(
            LoadComparisons(self.dataset, self.reading, self.seed),
            RenderPairs(self.rendering),
            loss,
            JudgePairs(loss),
            referred=self.loss not in WITHOUT_REFERENCE,
        )

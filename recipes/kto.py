"""Preferences of which each is one answer, good or bad by itself (KTO)."""

from pydantic import PositiveFloat

from kitchen import Step
from recipes._base import TrainingOnPreferences
from stages.preference.dpo import JudgePairs
from stages.preference.kto import LabelLoss, LoadLabels, RenderLabels
from stages.train.session import FinalWeights


class Kto(TrainingOnPreferences):
    """Answers with a label; where data has right answers alone, the model's own mistakes are the
    bad ones.
    """

    outputs = (FinalWeights,)
    beta: PositiveFloat = 0.1  # how dearly the reference is held
    # of a good answer in the loss: good_weight times their number should be 1 to 4/3
    good_weight: PositiveFloat = 1.0
    bad_weight: PositiveFloat = 1.0  # times bad_weight times the number of bad ones

    def workflow(self) -> Step:
        loss = LabelLoss(self.beta, self.good_weight, self.bad_weight)
        return self.preferring(
            LoadLabels(self.dataset, self.reading, self.seed),
            RenderLabels(self.rendering),
            loss,
            JudgePairs(loss, "answer"),
        )

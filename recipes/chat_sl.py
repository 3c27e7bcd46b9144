"""Supervised fine-tuning on a mixture of data sets, by their weights."""

from collections.abc import Mapping

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kitchen import Step, for_each, sequence
from recipes._base import TrainingOnRows
from stages.chat.render import RenderDataset
from stages.data.mixture import (
    LoadMixture,
    MixtureBatches,
    RenderMixture,
    ReportSourceLosses,
    UnpackMixture,
)
from stages.evaluate.before_after import CompareEvaluations, QualityGate
from stages.evaluate.evaluation import EvalConfig, EvaluateBase, EvaluateWeights, RenderHeldOut
from stages.evaluate.kept_exports import StartExports
from stages.train.session import FinalWeights, OpenSession, SaveFinal


class ChatSl(TrainingOnRows):
    """Conversations of any number of turns, from several places; each is told how well it is
    learnt.
    """

    outputs = (FinalWeights,)
    # mixture.DATASET=WEIGHT; null: ingredients and arithmetic alike
    mixture: Mapping[str, PositiveFloat] | None = None
    rendering: RenderDataset = RenderDataset()
    evaluation: EvalConfig = EvalConfig(metric="loss")
    steps: PositiveInt = 100  # optimiser steps
    learning_rate: PositiveFloat = 1e-3  # the highest, at the end of warm-up
    warmup_steps: NonNegativeInt = 10  # optimiser steps
    batch_size: PositiveInt = 16  # datums per optimiser step

    def workflow(self) -> Step:
        mixture = {"ingredients": 1.0, "arithmetic": 1.0} if self.mixture is None else self.mixture
        return sequence(
            LoadMixture(tuple(mixture), self.reading, self.seed),
            OpenSession(self.model, self.lora),
            StartExports(),
            RenderMixture(self.rendering),
            RenderHeldOut(self.rendering),
            EvaluateBase(self.model, self.evaluation, self.rendering),
            for_each(
                MixtureBatches(mixture, self.batch_size, self.steps, self.seed),
                ahead=self.ahead,
                save=self.save_every,
            )(UnpackMixture(), *self.step("cross_entropy"), ReportSourceLosses()),
            SaveFinal(),
            EvaluateWeights(self.evaluation, self.rendering),
            CompareEvaluations(self.seed),
            QualityGate(self.evaluation.at_least),
        )

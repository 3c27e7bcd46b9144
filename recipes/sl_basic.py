"""Supervised fine-tuning: imitate the assistant's answers, and show on held-out data that it
helped.
"""

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kitchen import Step, for_each, sequence
from recipes._base import TrainingInEpochs
from stages.chat.render import RenderDataset
from stages.data.dataset import Epochs, LoadDataset, ShuffledBatches
from stages.evaluate.before_after import CompareEvaluations, QualityGate
from stages.evaluate.evaluation import EvaluateBase, EvaluateWeights, RenderHeldOut
from stages.evaluate.kept_exports import StartExports
from stages.train.session import FinalWeights, OpenSession, SaveFinal


class SlBasic(TrainingInEpochs):
    """Cross-entropy on the assistant's tokens: one LoRA, evaluated before and after."""

    outputs = (FinalWeights,)
    rendering: RenderDataset = RenderDataset()
    learning_rate: PositiveFloat = 1e-3  # the highest, at the end of warm-up
    warmup_steps: NonNegativeInt = 10  # optimiser steps
    batch_size: PositiveInt = 16  # conversations per optimiser step

    def workflow(self) -> Step:
        return sequence(
            LoadDataset(self.dataset, self.reading, self.seed, self.rows),
            OpenSession(self.model, self.lora),
            StartExports(),
            *self.prepared(),
            RenderHeldOut(self.rendering),
            EvaluateBase(self.model, self.evaluation, self.rendering),
            for_each(Epochs(self.epochs, self.batch_size, self.max_steps))(
                for_each(
                    ShuffledBatches(self.batch_size, self.seed),
                    ahead=self.ahead,
                    save=self.save_every,
                )(*self.step("cross_entropy"))
            ),
            SaveFinal(),
            EvaluateWeights(self.evaluation, self.rendering),
            CompareEvaluations(self.seed),
            QualityGate(self.evaluation.at_least),
        )

    @property
    def rows(self) -> int | None:
        """To train on, at most; None where it is not known."""
        return self.rendering.rows_for_steps(self.max_steps, self.batch_size)

    def prepared(self) -> tuple[Step, ...]:
        """From the rows that were loaded to the data that is trained on."""
        return (self.rendering,)

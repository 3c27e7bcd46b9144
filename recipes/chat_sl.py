"""Supervised fine-tuning on a weighted mixture of data sets."""

from collections.abc import Mapping

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kitchen import Step, every, for_each, sequence
from recipes._base import TrainingRecipe
from stages import chat, data, evaluate, train


class ChatSl(TrainingRecipe):
    """Multi-turn conversations from several data sets, with the loss of each data set."""

    evaluation: evaluate.EvalConfig = evaluate.EvalConfig(metric="loss")
    # look-ahead: optimiser steps submitted before the result of the current one has arrived
    ahead: NonNegativeInt = 1
    # sampling weights, mixture.DATASET=WEIGHT; null for ingredients and arithmetic in equal parts
    mixture: Mapping[str, PositiveFloat] | None = None
    rendering: chat.RenderDataset = chat.RenderDataset()
    steps: PositiveInt = 100  # number of optimiser steps
    learning_rate: PositiveFloat = 1e-3  # peak learning rate, reached at the end of warm-up
    warmup_steps: NonNegativeInt = 10  # length of the warm-up, in optimiser steps
    batch_size: PositiveInt = 16  # datums per optimiser step

    def workflow(self) -> Step:
        mixture = {"ingredients": 1.0, "arithmetic": 1.0} if self.mixture is None else self.mixture
        batches = data.MixtureBatches(mixture, self.batch_size, self.steps, self.seed)
        drop_bad_rows = evaluate.DropBadMixtureRows(self.rendering, self.evaluation)
        return sequence(
            data.LoadMixture(tuple(mixture), self.reading, self.seed),
            train.OpenSession(self.model, self.trainable),
            *data.when_dropping(self.reading.bad_rows, drop_bad_rows),
            *evaluate.start_exports(self.early_stopping),
            data.RenderMixture(self.rendering),
            evaluate.RenderHeldOut(self.rendering),
            evaluate.EvaluateBase(self.model, self.evaluation, self.rendering),
            for_each(self.until_stopped(batches), ahead=self.ahead, save=self.save_every)(
                data.UnpackMixture(),
                train.ForwardBackward("cross_entropy"),
                self.optim,
                every(self.eval_every)(evaluate.MeasureHeldOut(), *self.export_or_stop),
                train.ReportStep(),
                every(self.eval_every)(evaluate.TrackBestExport(self.keep, self.best)),
                data.ReportSourceLosses(),
            ),
            train.SaveFinal(),
            evaluate.EvaluateWeights(self.evaluation, self.rendering),
            evaluate.CompareEvaluations(),
            evaluate.QualityGate(self.evaluation.at_least),
        )

"""Supervised fine-tuning: imitate the assistant's answers, and measure it on held-out data."""

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kitchen import Step, every, for_each, sequence
from recipes._base import EpochRecipe
from stages import chat, data, evaluate, train


class SlBasic(EpochRecipe):
    """Cross-entropy on the assistant's tokens, evaluated before and after."""

    rendering: chat.RenderDataset = chat.RenderDataset()
    learning_rate: PositiveFloat = 1e-3  # peak learning rate, reached at the end of warm-up
    warmup_steps: NonNegativeInt = 10  # length of the warm-up, in optimiser steps
    batch_size: PositiveInt = 16  # conversations per optimiser step

    def workflow(self) -> Step:
        rows = self.rendering.rows_for_steps(self.max_steps, self.batch_size)  # None: all of them
        epochs = data.Epochs(self.epochs, self.batch_size, self.max_steps)
        batches = data.ShuffledBatches(self.batch_size, self.seed)
        drop_bad_rows = evaluate.DropBadRows(self.rendering, self.evaluation)
        return sequence(
            data.LoadDataset(self.dataset, self.reading, self.seed, rows),
            train.OpenSession(self.model, self.trainable),
            *data.when_dropping(self.reading.bad_rows, drop_bad_rows),
            *evaluate.start_exports(self.early_stopping),
            self.rendering,
            evaluate.RenderHeldOut(self.rendering),
            evaluate.EvaluateBase(self.model, self.evaluation, self.rendering),
            for_each(self.until_stopped(epochs))(
                for_each(self.until_stopped(batches), ahead=self.ahead, save=self.save_every)(
                    train.ForwardBackward("cross_entropy"),
                    self.optim,
                    every(self.eval_every)(evaluate.MeasureHeldOut(), *self.export_or_stop),
                    *evaluate.monitor_held_out(self.monitor, self.evaluation, self.rendering),
                    train.ReportStep(),
                    every(self.eval_every)(evaluate.TrackBestExport(self.keep, self.best)),
                )
            ),
            train.SaveFinal(),
            evaluate.EvaluateWeights(self.evaluation, self.rendering),
            evaluate.CompareEvaluations(),
            evaluate.QualityGate(self.evaluation.at_least),
        )

"""Preference optimisation on single answers, each good or bad by itself: KTO."""

from pydantic import PositiveFloat, PositiveInt

from kitchen import Step, every, for_each, sequence
from kitchen.types import ModelName
from recipes._base import EpochRecipe
from stages import chat, data, evaluate, preference, train


class Kto(EpochRecipe):
    """Make good answers likelier and bad ones less likely, and stay near the reference model."""

    # reference model, named like `model`; null for the initial weights
    reference: ModelName | None = None
    mistakes: preference.MistakesConfig = preference.MistakesConfig()
    rendering: chat.RenderDataset = chat.RenderDataset(train_on="last_assistant_turn")
    learning_rate: PositiveFloat = 1e-5  # peak learning rate, reached at the end of warm-up
    batch_size: PositiveInt = 16  # answers per optimiser step
    # scale of the rewards: a larger one keeps the policy closer to the reference model
    beta: PositiveFloat = 0.1
    # weight of good answers in the loss; the total weight of good answers should be 1 to 4/3 times
    # that of bad answers
    good_weight: PositiveFloat = 1.0
    bad_weight: PositiveFloat = 1.0  # weight of bad answers in the loss

    def workflow(self) -> Step:
        loss = preference.KtoLoss(self.beta, self.good_weight, self.bad_weight)
        reference = self.reference or self.model
        epochs = data.Epochs(self.epochs, self.batch_size, self.max_steps).using(preference.PAIRS)
        batches = preference.ShuffledPairs(self.batch_size, self.seed)
        drop_bad_rows = preference.DropBadLabelledAnswers(self.rendering, self.evaluation)
        return sequence(
            preference.LoadLabelledAnswers(self.dataset, self.reading, self.seed),
            train.OpenSession(self.model, self.trainable),
            *data.when_dropping(self.reading.bad_rows, drop_bad_rows),
            evaluate.IdentifyWeights(reference, "reference"),
            *evaluate.start_exports(self.early_stopping),
            preference.SampleRejectedAnswers(
                self.model, self.rendering, self.mistakes, self.seed, self.evaluation
            ),
            preference.RenderLabelledAnswers(self.rendering),
            preference.PrecomputeReferenceLogprobs(reference, self.model),
            preference.AttachReferenceLogprobs(),
            evaluate.EvaluateBase(self.model, self.evaluation, self.rendering),
            for_each(self.until_stopped(epochs))(
                for_each(self.until_stopped(batches), ahead=self.ahead, save=self.save_every)(
                    train.ForwardBackward(loss),
                    self.optim,
                    every(self.eval_every)(evaluate.MeasureHeldOut(loss), *self.export_or_stop),
                    *evaluate.monitor_held_out(self.monitor, self.evaluation, self.rendering),
                    train.ReportStep(),
                    every(self.eval_every)(evaluate.TrackBestExport(self.keep, self.best, loss)),
                )
            ),
            train.SaveFinal(),
            preference.EvaluatePairs(loss, "answer"),
            evaluate.MeasureKL(reference, self.rendering, self.evaluation.max_tokens, self.seed),
            evaluate.EvaluateWeights(self.evaluation, self.rendering),
            evaluate.CompareEvaluations(),
            evaluate.QualityGate(self.evaluation.at_least),
        )

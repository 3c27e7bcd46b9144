"""Preference optimisation on pairs of answers: DPO, IPO, hinge, SimPO and ORPO."""

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from kitchen import Step, every, for_each, sequence
from kitchen.types import ModelName
from recipes._base import EpochRecipe
from stages import chat, data, evaluate, preference, train


class Dpo(EpochRecipe):
    """Make the chosen answer likelier than the rejected one, and stay near the reference model."""

    # reference model, named like `model`; null for the initial weights
    reference: ModelName | None = None
    mistakes: preference.MistakesConfig = preference.MistakesConfig()
    rendering: chat.RenderDataset = chat.RenderDataset(train_on="last_assistant_turn")
    learning_rate: PositiveFloat = 1e-5  # peak learning rate, reached at the end of warm-up
    batch_size: PositiveInt = 16  # pairs per optimiser step
    loss: preference.PairLossName = "sigmoid"  # loss on pairs of answers; sigmoid is DPO
    # scale of the rewards: a larger one keeps the policy closer to the reference model; with
    # loss=orpo, weight of the odds-ratio term; null for 0.1, or for 2 with loss=simpo
    beta: PositiveFloat | None = None
    label_smoothing: NonNegativeFloat = 0.0  # assumed share of wrong labels, with loss=sigmoid
    # with loss=simpo, target reward margin (gamma), in beta times nats per token; null for beta / 2
    target_margin: NonNegativeFloat | None = None
    imitation: NonNegativeFloat = 0.0  # weight of the chosen answers' cross-entropy per token

    def workflow(self) -> Step:
        loss = preference.PairLoss(
            self.loss, self.beta, self.label_smoothing, self.imitation, self.target_margin
        )
        reference = self.reference or self.model
        epochs = data.Epochs(self.epochs, self.batch_size, self.max_steps).using(preference.PAIRS)
        batches = preference.ShuffledPairs(self.batch_size, self.seed)
        drop_bad_rows = preference.DropBadComparisons(self.rendering, self.evaluation)
        return sequence(
            preference.LoadComparisons(self.dataset, self.reading, self.seed),
            train.OpenSession(self.model, self.trainable),
            *data.when_dropping(self.reading.bad_rows, drop_bad_rows),
            evaluate.IdentifyWeights(reference, "reference"),
            *evaluate.start_exports(self.early_stopping),
            preference.SampleRejectedAnswers(
                self.model, self.rendering, self.mistakes, self.seed, self.evaluation
            ),
            preference.RenderPairs(self.rendering),
            *preference.reference_stages(reference, self.model, loss.uses_reference),
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
            preference.EvaluatePairs(loss),
            evaluate.MeasureKL(reference, self.rendering, self.evaluation.max_tokens, self.seed),
            evaluate.EvaluateWeights(self.evaluation, self.rendering),
            evaluate.CompareEvaluations(),
            evaluate.QualityGate(self.evaluation.at_least),
        )

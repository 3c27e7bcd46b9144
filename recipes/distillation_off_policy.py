"""Off-policy distillation: a teacher answers once, and the student imitates its answers."""

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kitchen import Step, every, for_each, sequence
from kitchen.types import ModelName
from recipes._base import EpochRecipe
from stages import chat, data, distill, evaluate, train


class DistillationOffPolicy(EpochRecipe):
    """Imitate another model, or the model itself with a system prompt (prompt distillation)."""

    # rendering of the teacher's answers and of held-out rows
    rendering: chat.RenderDataset = chat.RenderDataset(train_on="last_assistant_message")
    learning_rate: PositiveFloat = 1e-3  # peak learning rate, reached at the end of warm-up
    warmup_steps: NonNegativeInt = 10  # length of the warm-up, in optimiser steps
    batch_size: PositiveInt = 16  # conversations per optimiser step
    # teacher model, named like `model`; null for the initial weights
    teacher: ModelName | None = None
    instruction: str = ""  # system prompt for the teacher only
    writing: distill.GenerationConfig = distill.GenerationConfig()

    def workflow(self) -> Step:
        teacher = distill.teacher_of(self.teacher, self.model, self.instruction)
        prompted = self.rendering, self.instruction, self.seed
        # None: all of them
        answers = self.rendering.rows_for_steps(self.max_steps, self.batch_size)
        rows = None if answers is None else -(-answers // self.writing.tries)
        epochs = data.Epochs(self.epochs, self.batch_size, self.max_steps)
        batches = data.ShuffledBatches(self.batch_size, self.seed)
        drop_bad_rows = evaluate.DropBadRows(self.rendering, self.evaluation)
        return sequence(
            data.LoadDataset(self.dataset, self.reading, self.seed, rows),
            train.OpenSession(self.model, self.trainable),
            *data.when_dropping(self.reading.bad_rows, drop_bad_rows),
            *evaluate.start_exports(self.early_stopping),
            evaluate.IdentifyWeights(teacher, "teacher"),
            distill.GenerateTeacherAnswers(teacher, self.writing, *prompted),
            distill.ReplaceAnswers(),
            self.rendering.using({chat.TrainRows: distill.TeacherRows}),
            distill.EvaluateTeacher(teacher, self.evaluation, *prompted),
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

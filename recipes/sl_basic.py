"""Supervised fine-tuning: imitate the assistant's answers, and show on held-out data that it helped."""

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kitchen import Lora, Recipe, Step, every, for_each, sequence
from stages.comparison import Compare, QualityGate
from stages.data import Epochs, LoadDataset, Reading, ShuffledBatches
from stages.evaluation import EvaluateBase, EvaluateWeights, Examination, MeasureHeldOut, RenderHeldOut
from stages.keeping import ExportWeights, KeepBest, StartKeeping
from stages.optimise import ForwardBackward, OptimStep, ReportStep
from stages.render import RenderDataset
from stages.schedules import ScheduleName, schedule
from stages.sessions import FinalWeights, OpenSession, SaveFinal


class SlBasic(Recipe):
    """Cross-entropy on the assistant's tokens: one LoRA, evaluated before and after."""

    leaves = (FinalWeights,)
    model: str = "packaged:smollm2-135m-instruct"  # packaged:NAME, path:DIR, run:ID@best, or a hub's NAME[@REVISION]
    dataset: str = "ingredients"  # a packaged data set, a file or a folder; with --datasets hf a name at the hub
    reading: Reading = Reading()
    rendering: RenderDataset = RenderDataset()
    evaluation: Examination = Examination()
    lora_rank: PositiveInt = 16  # alpha is twice the rank
    learning_rate: PositiveFloat = 1e-3  # the highest, at the end of warm-up
    schedule: ScheduleName = "linear"
    warmup_steps: NonNegativeInt = 10  # optimiser steps
    batch_size: PositiveInt = 16  # conversations per optimiser step
    epochs: PositiveInt = 1
    max_steps: PositiveInt | None = None  # optimiser steps in all; null for whole epochs
    seed: NonNegativeInt = 0
    save_every: NonNegativeInt = 25  # optimiser steps from one point to resume from to the next; 0 for none
    eval_every: NonNegativeInt = 50  # optimiser steps between held-out losses and exports of the weights; 0 for none
    keep: PositiveInt = 2  # exports: the last so many, and the best
    ahead: NonNegativeInt = 1  # optimiser steps submitted beyond the one waited for

    def workflow(self) -> Step:
        return sequence(
            LoadDataset(self.dataset, self.reading, self.seed, self.rendering.rows_of(self.max_steps, self.batch_size)),
            OpenSession(self.model, Lora(self.lora_rank, alpha=2.0 * self.lora_rank, seed=self.seed)), StartKeeping(),
            self.rendering, RenderHeldOut(self.rendering), EvaluateBase(self.model, self.evaluation, self.rendering),
            for_each(Epochs(self.epochs, self.batch_size, self.max_steps))(
                for_each(ShuffledBatches(self.batch_size, self.seed), ahead=self.ahead, save=self.save_every)(
                    ForwardBackward(), OptimStep(schedule(self.schedule, self.learning_rate, self.warmup_steps)),
                    every(self.eval_every)(MeasureHeldOut(), ExportWeights()),
                    ReportStep(), every(self.eval_every)(KeepBest(self.keep)))),
            SaveFinal(), EvaluateWeights(self.evaluation, self.rendering), Compare(self.seed),
            QualityGate(self.evaluation.at_least))

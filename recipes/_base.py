"""What recipes that train have in common: their settings, and the steps inside their loop."""

from __future__ import annotations

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from kitchen import Lora, Recipe, Step, every, for_each, sequence
from kitchen.errors import ConfigError
from kitchen.ports import TrainingSession
from kitchen.types import Adam, Loss
from stages.chat.masks import TrainOn
from stages.chat.render import RenderDataset, TrainData
from stages.data.dataset import DEFAULT_DATASET, DataConfig, Epochs
from stages.evaluate.before_after import CompareEvaluations, QualityGate
from stages.evaluate.evaluation import EvalConfig, EvaluateBase, EvaluateWeights, MeasureHeldOut
from stages.evaluate.kept_exports import ExportWeights, StartExports, TrackBestExport
from stages.evaluate.kl import MeasureKL
from stages.evaluate.reference import IdentifyWeights
from stages.preference.comparisons import OwnMistakes, WriteMistakes
from stages.preference.dpo import JoinReference, PairData, ScoreReference, ShuffledPairs
from stages.rl.policy_gradient import PolicyUpdate
from stages.rl.rollouts import RollOut, RolloutConfig, Snapshot
from stages.tasks.tasks import TaskBatches
from stages.train.optim import ForwardBackward, OptimStep, ReportStep
from stages.train.schedules import ScheduleName, make_schedule
from stages.train.session import OpenSession, SaveFinal

JUDGED: tuple[TrainOn, ...] = (
    "last_assistant_turn",
    "last_assistant_message",
    "all_assistant_messages",
    "trainable",
)


class Training(Recipe):
    """One LoRA, trained by AdamW."""

    # packaged:NAME, path:DIR, run:ID@best, or a hub's NAME[@REVISION]
    model: str = "packaged:smollm2-135m-instruct"
    reading: DataConfig = DataConfig()
    lora_rank: PositiveInt = 16  # alpha is twice the rank
    learning_rate: PositiveFloat = 1e-4  # the highest, at the end of warm-up
    schedule: ScheduleName = "linear"
    warmup_steps: NonNegativeInt = 0  # optimiser steps
    weight_decay: NonNegativeFloat = 0.0  # decoupled from the gradient
    # what the norm of a step's whole gradient is cut to; 0 for no clipping
    grad_clip_norm: NonNegativeFloat = 0.0
    seed: NonNegativeInt = 0
    save_every: NonNegativeInt = 25  # batches from one point to resume from to the next; 0 for none

    @property
    def lora(self) -> Lora:
        return Lora(self.lora_rank, alpha=2.0 * self.lora_rank, seed=self.seed)

    @property
    def optim(self) -> OptimStep:
        return OptimStep(
            make_schedule(self.schedule, self.learning_rate, self.warmup_steps),
            Adam(weight_decay=self.weight_decay, grad_clip_norm=self.grad_clip_norm),
        )


class TrainingOnRows(Training):
    """Batches of data that lies there, with a look at held-out data now and then, and an evaluation
    at the end.
    """

    evaluation: EvalConfig = EvalConfig()
    # optimiser steps between held-out losses and exports of the weights; 0 for none
    eval_every: NonNegativeInt = 50
    keep: PositiveInt = 2  # exports: the last so many, and the best
    ahead: NonNegativeInt = 1  # optimiser steps submitted beyond the one waited for

    def step(self, loss: str | Loss) -> tuple[Step, ...]:
        """What is done with one batch: an optimiser step, reported, and now and then a look at
        held-out data.
        """
        return (
            ForwardBackward(loss),
            self.optim,
            every(self.eval_every)(MeasureHeldOut(loss), ExportWeights()),
            ReportStep(),
            every(self.eval_every)(TrackBestExport(self.keep)),
        )


class TrainingInEpochs(TrainingOnRows):
    """Passes over one data set."""

    # a packaged data set, a file or a folder; with --datasets hf a name at the hub
    dataset: str = DEFAULT_DATASET
    epochs: PositiveInt = 1
    max_steps: PositiveInt | None = None  # optimiser steps in all; null for whole epochs


class TrainingOnPreferences(TrainingInEpochs):
    """Answers that are wanted and others that are not; where data has right answers alone, the
    model errs itself.
    """

    # weights of any name, which the policy stays near; null for those it begins with
    reference: str | None = None
    mistakes: OwnMistakes = OwnMistakes()
    rendering: RenderDataset = RenderDataset(train_on="last_assistant_turn")
    learning_rate: PositiveFloat = 1e-5  # the highest, at the end of warm-up
    batch_size: PositiveInt = 16  # pairs, or answers, per optimiser step

    def preferring(
        self, load: Step, render: Step, loss: Loss, judge: Step, *, referred: bool = True
    ) -> Step:
        """`load` reads comparisons, `render` makes pairs of them; the reference, if it is asked,
        scores those.
        """
        if self.rendering.train_on not in JUDGED:
            raise ConfigError(
                f"rendering.train_on={self.rendering.train_on}: it is answers that are good or "
                "bad; take "
                f"one of {', '.join(JUDGED)}"
            )
        start = self.reference or self.model
        scored = [ScoreReference(start)] if referred else []
        return sequence(
            load,
            OpenSession(self.model, self.lora),
            IdentifyWeights(start, "reference"),
            StartExports(),
            WriteMistakes(self.model, self.rendering, self.mistakes, self.seed, self.evaluation),
            render,
            *scored,
            JoinReference(),
            EvaluateBase(self.model, self.evaluation, self.rendering),
            for_each(
                Epochs(self.epochs, self.batch_size, self.max_steps).using({TrainData: PairData})
            )(
                for_each(
                    ShuffledPairs(self.batch_size, self.seed),
                    ahead=self.ahead,
                    save=self.save_every,
                )(*self.step(loss))
            ),
            SaveFinal(),
            judge,
            MeasureKL(start, self.rendering, self.evaluation.max_tokens, self.seed),
            EvaluateWeights(self.evaluation, self.rendering),
            CompareEvaluations(self.seed),
            QualityGate(self.evaluation.at_least),
        )


class TrainingOnRollouts(Training):
    """Batches of what the weights themselves answer, of which each is learnt from and thrown away."""

    # a packaged data set, a file or a folder; with --datasets hf a name at the hub
    dataset: str = DEFAULT_DATASET
    playing: RolloutConfig = RolloutConfig()
    steps: PositiveInt = 30  # batches of rollouts
    batch_size: PositiveInt = 8  # problems of a batch
    group: PositiveInt = 8  # rollouts of each problem
    updates: PositiveInt = 1  # optimiser steps on each batch of rollouts
    # batches that the acting weights are behind, save points aside; 0: a fresh copy acts
    stale: NonNegativeInt = 0

    @property
    def rows(self) -> int:
        """Problems that the run comes to, at most."""
        return self.steps * self.batch_size

    def rounds(self, *body: Step) -> Step:
        """Batch by batch: a copy of the weights answers, and `body` learns from it; raises
        ConfigError.
        """
        if 0 < self.save_every <= self.stale:
            raise ConfigError(
                f"save_every={self.save_every} with stale={self.stale}: what is in flight is "
                "learnt from "
                "before a point to resume from, so that no weights would ever be that far behind; "
                "save "
                "after more batches than that, or never (0)"
            )
        if self.group == 1 and any(
            isinstance(each, PolicyUpdate) and not each.penalty for each in body
        ):
            raise ConfigError(
                "group=1: a rollout that is compared with no other teaches nothing; take 2 or more"
            )
        return for_each(
            TaskBatches(self.batch_size, self.steps, self.seed),
            ahead=self.stale,
            save=self.save_every,
            stale=(TrainingSession,) if self.stale else (),
        )(Snapshot(), RollOut(self.group, self.playing, self.seed), *body)

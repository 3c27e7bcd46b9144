"""Shared settings of the training recipes, and the LoRA and optimiser built from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from kitchen import Lora, Recipe, Stage, Step, every
from kitchen.errors import ConfigError
from kitchen.ports import TrainingSession
from kitchen.types import Adam, FullWeights, LoraKind, LoraRank, ModelName, Seed, Trainable
from stages.data import DataConfig
from stages.data.dataset import DEFAULT_DATASET
from stages.evaluate import (
    BestConfig,
    EarlyStopping,
    EvalConfig,
    HeldOutStage,
    MonitorConfig,
    TrackBestExport,
    export_or_stop,
    until_stopped,
)
from stages.rl import RolloutConfig, check_batch
from stages.tasks import GradingConfig, GymSetting, ProblemSources, RewardSetting, RubricConfig
from stages.train import (
    LORA_FACTOR,
    FinalWeights,
    OptimStep,
    ScheduleName,
    check_planned,
    default_alpha,
    make_schedule,
)


class TrainingRecipe(Recipe):
    """Settings of every recipe that trains the weights of one model with AdamW."""

    outputs: ClassVar[tuple[type, ...]] = (FinalWeights,)
    # weights to start from: packaged:NAME, path:DIR, run:ID@best, or NAME[@REVISION] on the hub
    model: ModelName = "packaged:smollm2-135m-instruct"
    reading: DataConfig = DataConfig()
    # weights to train: lora for LoRA weights, or full for all weights of the model
    train: Literal["lora", "full"] = "lora"
    lora_rank: LoraRank = 16  # rank of the LoRA matrices
    # lora; rslora, whose update is scaled by alpha / √rank; or dora, which also trains the norms of
    # the weights' rows
    lora_kind: LoraKind = "lora"
    learning_rate: PositiveFloat = 1e-4  # peak learning rate, reached at the end of warm-up
    # learning rate schedule after warm-up: linear (decay to 0), cosine or constant; or
    # MODULE:function, called as f(step, steps), which returns a factor of the learning rate
    schedule: ScheduleName = "linear"
    warmup_steps: NonNegativeInt = 0  # length of the warm-up, in optimiser steps
    weight_decay: NonNegativeFloat = 0.0  # AdamW's decoupled weight decay
    # maximum norm of the gradient, over all trained weights; 0 for no gradient clipping
    grad_clip_norm: NonNegativeFloat = 0.0
    seed: Seed = 0  # random seed of initialisation, data order and sampling
    save_every: NonNegativeInt = 25  # batches between save points, to resume from; 0 for none
    # optimiser steps between measurements of the held-out loss, each with an export of the weights;
    # 0 for none
    eval_every: NonNegativeInt = 50
    keep: PositiveInt = 2  # number of latest exports to keep, besides the best one
    best: BestConfig = BestConfig()
    early_stopping: EarlyStopping = EarlyStopping()

    @property
    def lora(self) -> Lora:
        """The configuration of LoRA weights."""
        lora = Lora(self.lora_rank, kind=self.lora_kind, seed=self.seed)
        return replace(lora, alpha=default_alpha(lora))

    @property
    def trainable(self) -> Trainable:
        """The weights to train."""
        return FullWeights() if self.train == "full" else self.lora

    @property
    def optim(self) -> OptimStep:
        """The stage that takes one optimiser step."""
        return OptimStep(
            make_schedule(self.schedule, self.learning_rate, self.warmup_steps),
            Adam(weight_decay=self.weight_decay, grad_clip_norm=self.grad_clip_norm),
        )

    @property
    def export_or_stop(self) -> tuple[Stage, ...]:
        """The stages after a measurement: an export, and early stopping if it is set."""
        return export_or_stop(self.best, self.early_stopping, self.eval_every)

    def until_stopped(self, source: Stage) -> Stage:
        """Return a loop source that ends when training stops early."""
        return until_stopped(source, self.early_stopping)

    @model_validator(mode="after")
    def _check_full_weights(self) -> Self:
        """Raise ConfigError for settings of LoRA that train=full ignores, and for its rate."""
        if self.train == "lora":
            return self
        fields = type(self).model_fields
        names = [name for name in fields if name.startswith("lora_")]
        changed = [name for name in names if getattr(self, name) != fields[name].default]
        if changed:
            listed = " and ".join(changed)
            raise ConfigError(
                f"train=full trains all weights without LoRA, so {listed} would have no effect: "
                f"set train=lora, or leave out {listed}"
            )
        rate = fields["learning_rate"].default
        if fields["train"].default == "lora" and "learning_rate" not in self.model_fields_set:
            raise ConfigError(
                f"train=full needs another learning rate: the default, {rate:g}, is for LoRA, "
                f"and for all weights a tenth is usual; set learning_rate={rate / LORA_FACTOR:g}"
            )
        return self

    @model_validator(mode="after")
    def _check_early_stopping(self) -> Self:
        """Raise ConfigError for settings that have no effect without measurements."""
        self.early_stopping.check(self.eval_every)
        if self.eval_every == 0 and self.best != type(self).model_fields["best"].default:
            raise ConfigError(
                f"best.metric={self.best.metric} has no effect without evaluations during "
                "training, and eval_every=0 means none: set eval_every"
            )
        return self


class EpochSettings(TrainingRecipe):
    """Settings of recipes that train in epochs, without those of an evaluation."""

    # scale of the LoRA update, times the rank (for rslora times its square root); null for twice
    # the rank, for rslora 8
    lora_alpha: PositiveFloat | None = None
    # share of the inputs of LoRA layers that are set to 0 in training
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    # linear layers that get LoRA weights: those of attention, of the MLP, or all
    lora_layers: Literal["all", "attention", "mlp"] = "all"
    # look-ahead: optimiser steps submitted before the result of the current one has arrived
    ahead: NonNegativeInt = 1
    monitor: MonitorConfig = MonitorConfig()
    # training data: a packaged data set, a file, a folder or, with --datasets hf, a name on the hub
    dataset: str = DEFAULT_DATASET
    epochs: PositiveInt = 1  # passes over the data
    max_steps: PositiveInt | None = None  # maximum number of optimiser steps; null for all epochs

    @property
    def lora(self) -> Lora:
        """The configuration of LoRA weights."""
        return replace(
            super().lora,
            alpha=self.lora_alpha or super().lora.alpha,
            dropout=self.lora_dropout,
            train_attn=self.lora_layers != "mlp",
            train_mlp=self.lora_layers != "attention",
        )


class EpochRecipe(EpochSettings):
    """Settings of recipes that train on a data set, in epochs."""

    evaluation: EvalConfig = EvalConfig()


class RolloutRecipe(TrainingRecipe):
    """Settings of recipes that train on rollouts of the policy itself."""

    # batches of rollouts between evaluations on held-out problems, each with an export of the
    # weights; 0 for none
    eval_every: NonNegativeInt = 0
    eval_rows: PositiveInt = 64  # first problems of each held-out set that these evaluations use
    best: BestConfig = BestConfig("held_out_reward")
    # problems: a packaged data set, a file, a folder or, with --datasets hf, a name on the hub
    dataset: str = DEFAULT_DATASET
    # several data sets with sampling weights, mixture.DATASET=WEIGHT; null for `dataset` alone
    mixture: Mapping[str, PositiveFloat] | None = None
    playing: RolloutConfig = RolloutConfig()
    steps: PositiveInt = 30  # number of batches of rollouts
    batch_size: PositiveInt = 8  # problems per batch
    group: PositiveInt = 8  # rollouts per problem (group size)
    updates: PositiveInt = 1  # optimiser steps per batch of rollouts
    # batches by which the sampling weights lag behind the trained ones, except after a save point;
    # 0 for strictly on-policy training
    policy_lag: NonNegativeInt = 0

    @property
    def stale(self) -> tuple[type, ...]:
        """The types of which sampling may read an earlier value."""
        return (TrainingSession,) if self.policy_lag else ()

    def evaluated(self, measure: HeldOutStage) -> Step:
        """The steps of an evaluation during training, whose result is waited for at once."""
        self.best.check(measure.measures)
        track = TrackBestExport(self.keep, self.best, loss=None)
        return every(self.eval_every)(measure, *self.export_or_stop, track)

    @property
    def problems(self) -> int:
        """The number of problems in all batches, counting repetitions."""
        return self.steps * self.batch_size

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        """Raise ConfigError for more rollouts or problems than fit in memory."""
        check_batch(self.batch_size, self.group)
        check_planned(self.batch_size, self.steps)
        return self

    @model_validator(mode="after")
    def _check_that_lag_can_be_reached(self) -> Self:
        """Raise ConfigError if no batch could ever be policy_lag batches behind."""
        if 0 < self.save_every <= self.policy_lag:
            raise ConfigError(
                f"policy_lag={self.policy_lag} cannot be reached with save_every="
                f"{self.save_every}: before a save point, all batches in flight are trained on, so "
                f"the sampling weights never lag {self.policy_lag} batches behind. Set save_every "
                "above policy_lag, or to 0 for no save points."
            )
        return self


class RewardedRecipe(RolloutRecipe):
    """Settings of recipes whose problems have rewards, from one data set or several."""

    # reward: field_f1, exact, math, rubric (a judge), or MODULE:function for your own; for a
    # weighted sum a list, or weights by name; null for exact, or field_f1 if all reference answers
    # are JSON objects
    reward: RewardSetting = None
    rubric: RubricConfig = RubricConfig()
    grading: GradingConfig = GradingConfig()
    # reward of one data set of the mixture, rewards.DATASET=REWARD, in place of `reward`
    rewards: Mapping[str, RewardSetting] = {}
    # options of reasoning-gym's tasks: reasoning_gym.TASK.OPTION=VALUE, such as
    # reasoning_gym.chain_sum.max_digits=2
    reasoning_gym: GymSetting = Field(default={})

    @property
    def sources(self) -> ProblemSources:
        """The data sets of problems, and how their answers are rewarded."""
        return ProblemSources(
            self.dataset,
            self.reading,
            self.seed,
            self.problems,
            self.reward,
            self.grading,
            self.mixture,
            self.rewards,
            self.reasoning_gym,
            self.rubric,
            self.model,
        )

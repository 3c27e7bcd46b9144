"""Settings that recipes share: fields only. Every recipe spells out its own workflow."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from kitchen import Lora, Recipe
from kitchen.errors import ConfigError
from kitchen.types import Adam
from stages.data import DataConfig
from stages.data.dataset import DEFAULT_DATASET
from stages.evaluate import EvalConfig
from stages.rl import RolloutConfig
from stages.train import FinalWeights, OptimStep, ScheduleName, make_schedule


class TrainingRecipe(Recipe):
    """Settings of every recipe that trains one LoRA with AdamW."""

    outputs: ClassVar[tuple[type, ...]] = (FinalWeights,)
    # weights to start from: packaged:NAME, path:DIR, run:ID@best, or a hub's NAME[@REVISION]
    model: str = "packaged:smollm2-135m-instruct"
    reading: DataConfig = DataConfig()
    lora_rank: PositiveInt = 16  # rank of the LoRA matrices; alpha is twice the rank
    learning_rate: PositiveFloat = 1e-4  # peak learning rate, reached at the end of warm-up
    schedule: ScheduleName = "linear"  # learning rate schedule after warm-up
    warmup_steps: NonNegativeInt = 0  # warm-up, in optimiser steps
    weight_decay: NonNegativeFloat = 0.0  # AdamW's decoupled weight decay
    # gradient clipping: maximum norm of a step's whole gradient; 0 for no clipping
    grad_clip_norm: NonNegativeFloat = 0.0
    seed: NonNegativeInt = 0  # seed of everything random: initialisation, order, sampling
    save_every: NonNegativeInt = 25  # batches between two save points to resume from; 0 for none

    @property
    def lora(self) -> Lora:
        """The adapter that is trained."""
        return Lora(self.lora_rank, alpha=2.0 * self.lora_rank, seed=self.seed)

    @property
    def optim(self) -> OptimStep:
        """The stage that takes one optimiser step."""
        return OptimStep(
            make_schedule(self.schedule, self.learning_rate, self.warmup_steps),
            Adam(weight_decay=self.weight_decay, grad_clip_norm=self.grad_clip_norm),
        )


class EpochRecipe(TrainingRecipe):
    """Settings of recipes that train on a data set, in epochs."""

    evaluation: EvalConfig = EvalConfig()
    # optimiser steps between two held-out losses with exports of the weights; 0 for none
    eval_every: NonNegativeInt = 50
    keep: PositiveInt = 2  # exports to retain: the last so many, and the best
    ahead: NonNegativeInt = 1  # look-ahead: optimiser steps submitted beyond the one waited for
    # training data: a packaged data set, a file or a folder; with --datasets hf a name at the hub
    dataset: str = DEFAULT_DATASET
    epochs: PositiveInt = 1  # passes over the data
    max_steps: PositiveInt | None = None  # optimiser steps in all; null for whole epochs


class RolloutRecipe(TrainingRecipe):
    """Settings of recipes that train on rollouts of the policy itself."""

    # problems: a packaged data set, a file or a folder; with --datasets hf a name at the hub
    dataset: str = DEFAULT_DATASET
    playing: RolloutConfig = RolloutConfig()
    steps: PositiveInt = 30  # batches of rollouts
    batch_size: PositiveInt = 8  # problems per batch
    group: PositiveInt = 8  # group size: rollouts of each problem
    updates: PositiveInt = 1  # optimiser steps on each batch of rollouts
    # policy lag: batches that the acting weights are behind, except after a save point;
    # 0 for strictly on-policy training
    policy_lag: NonNegativeInt = 0

    @property
    def problems(self) -> int:
        """The number of problems that the run uses at most."""
        return self.steps * self.batch_size

    @model_validator(mode="after")
    def _save_less_often_than_the_policy_lags(self) -> Self:
        """Raise ConfigError if no batch could ever be policy_lag batches behind."""
        if 0 < self.save_every <= self.policy_lag:
            raise ConfigError(
                f"save_every={self.save_every} with policy_lag={self.policy_lag}: all batches in "
                "flight are trained on before a save point, so the acting weights would never be "
                "that far behind. Set save_every to more than policy_lag, or to 0 for no save "
                "points."
            )
        return self

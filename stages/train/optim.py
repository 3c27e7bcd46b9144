"""Optimiser steps: forward and backward, AdamW, and their metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from kitchen.ports import Future, TrainingClient, TrainingSession
from kitchen.progress import Progress
from kitchen.stage import Need, Stage
from kitchen.types import Adam, Batch, Loss, LossOutput, Metrics, OptimStepResult, Result, Table
from stages.train.schedules import PlannedSteps, Schedule, unreached_peak
from stages.train.suggested_lr import TrainedModel, learning_rate_table

log = structlog.get_logger("stages.train")


@dataclass(frozen=True)
class LearningRate(Result):
    """The learning rate of the optimiser step just submitted."""

    value: float


class ForwardBackward(Stage):
    """Submit the batch for the gradient of `loss`, without waiting for the result."""

    loss: str | Loss = "cross_entropy"
    options: Mapping[str, float] = field(default_factory=dict)  # options of a built-in loss

    def run(self, session: TrainingSession, batch: Batch) -> Future[LossOutput]:
        return session.forward_backward(batch.data, self.loss, self.options or None)

    def needs(self) -> Iterable[Need]:
        is_built_in = isinstance(self.loss, str)
        return [Need(TrainingClient, f"loss {self.loss}" if is_built_in else "custom loss")]


class OptimStep(Stage):
    """Submit an AdamW step along the gradient just computed, without waiting for it."""

    schedule: Schedule
    adam: Adam = Adam()

    def run(
        self, session: TrainingSession, gradient: Future[LossOutput], progress: Progress
    ) -> tuple[Future[OptimStepResult], LearningRate]:
        if progress.done is None:
            raise ValueError(
                "a schedule needs to know how long the loop is; its source has no len()"
            )
        steps = progress.total if progress.done == 0 else None
        if steps and (note := unreached_peak(self.schedule, steps)):
            log.warning(note)
        rate = self.schedule(progress.done, progress.width)
        return session.optim_step(replace(self.adam, learning_rate=rate)), LearningRate(rate)

    def needs(self) -> Iterable[Need]:
        is_set = self.adam.grad_clip_norm > 0
        return [Need(TrainingClient, "grad_clip_norm", required=False)] if is_set else []

    def preview(self, model: TrainedModel, steps: PlannedSteps | None = None) -> Table:
        return learning_rate_table(self.schedule, model, steps)


class ReportStep(Stage):
    """Report the loss, the optimiser's metrics, the learning rate and token counts of a batch.

    The loss reports sums; a batch's weights, which sum to 1, make them means.
    """

    prefix: str = ""  # prefix of the metrics, such as "judge", if the run trains several weights

    def run(
        self, batch: Batch, output: LossOutput, stepped: OptimStepResult, rate: LearningRate
    ) -> Metrics:
        weights = [datum.loss_inputs["weights"] for datum in batch.data]
        # a datum of top-k targets has weights (N, K): a position counts once
        trained = [(w.reshape(len(w), -1) != 0).any(-1).sum() for w in weights]
        metrics = {
            **stepped.metrics,
            **summed_metrics(output.metrics),
            "learning_rate": rate.value,
            "tokens": float(sum(len(datum.tokens) for datum in batch.data)),
            "trained_tokens": float(sum(trained)),
        }
        prefix = f"{self.prefix}_" if self.prefix else ""
        return Metrics({f"{prefix}{name}": value for name, value in metrics.items()})


def summed_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a loss that are sums: NAME:sum under the key NAME."""
    return {
        key.removesuffix(":sum"): value for key, value in metrics.items() if key.endswith(":sum")
    }

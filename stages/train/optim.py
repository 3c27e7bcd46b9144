"""One optimiser step: gradients, then AdamW."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kitchen.ports import Future, TrainingClient, TrainingSession
from kitchen.progress import Progress
from kitchen.stage import Need, Stage
from kitchen.types import Adam, Batch, Loss, LossOutput, Metrics, Result, Stepped, Table
from stages.train.schedules import Schedule
from stages.train.suggested_lr import TrainedModel, learning_rate_table


@dataclass(frozen=True)
class LearningRate(Result):
    """The learning rate of the step just submitted."""

    value: float


class ForwardBackward(Stage):
    """Ask for the gradient of `loss` on the batch; the answer comes later."""

    loss: str | Loss = "cross_entropy"
    options: Mapping[str, float] = field(default_factory=dict)  # of a loss by name

    def run(self, session: TrainingSession, batch: Batch) -> Future[LossOutput]:
        return session.forward_backward(batch.data, self.loss, self.options or None)

    def needs(self) -> Iterable[Need]:
        return [
            Need(
                TrainingClient,
                f"loss {self.loss}" if isinstance(self.loss, str) else "custom loss",
            )
        ]


class OptimStep(Stage):
    """Step AdamW along the gradient just asked for, without waiting for it."""

    schedule: Schedule
    adam: Adam = Adam()

    def run(
        self, session: TrainingSession, gradient: Future[LossOutput], progress: Progress
    ) -> tuple[Future[Stepped], LearningRate]:
        if progress.done is None:
            raise ValueError(
                "a schedule needs to know how long the loop is; its source has no len()"
            )
        rate = self.schedule(progress.done, progress.width)
        return session.optim_step(replace(self.adam, learning_rate=rate)), LearningRate(rate)

    def preview(self, learner: TrainedModel) -> Table:
        return learning_rate_table(self.schedule, learner)


class ReportStep(Stage):
    """Publish what the loss says of the batch, and what the optimiser does; the weights of a batch
    make sums means.
    """

    whose: str = ""  # "judge": before each name, where the run trains other weights too

    def run(
        self, batch: Batch, output: LossOutput, stepped: Stepped, rate: LearningRate
    ) -> Metrics:
        weights = [datum.loss_inputs["weights"] for datum in batch.data]
        found = {
            **stepped.metrics,
            **summed_metrics(output.metrics),
            "learning_rate": rate.value,
            "tokens": float(sum(len(datum.tokens) for datum in batch.data)),
            "trained_tokens": float(
                sum((each.reshape(len(each), -1) != 0).any(-1).sum() for each in weights)
            ),
        }
        return Metrics(
            {f"{self.whose}_{name}" if self.whose else name: value for name, value in found.items()}
        )


def summed_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The sums among what a loss says, by their plain names."""
    return {
        key.removesuffix(":sum"): value for key, value in metrics.items() if key.endswith(":sum")
    }

"""Mean training losses of whole epochs, which can be compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

from kitchen.stage import Stage
from kitchen.types import Batch, LossOutput, Result
from stages.data.dataset import Epoch
from stages.train.optim import summed_metrics


@dataclass(frozen=True)
class EpochLosses(Result):
    """Sums of the losses of batches by epoch.

    A batch of 8 rows and one of 1 row cannot be compared: each loss counts as often as its batch
    has rows, and only epochs are compared.
    """

    sums: tuple[float, ...] = ()  # by epoch: loss of each batch times its rows
    rows: tuple[int, ...] = ()  # by epoch

    def added(self, epoch: int, loss: float, rows: int) -> EpochLosses:
        """Return the losses with one more batch."""
        missing = epoch + 1 - len(self.rows)
        sums, counts = [*self.sums, *[0.0] * missing], [*self.rows, *[0] * missing]
        sums[epoch] += loss * rows
        counts[epoch] += rows
        return EpochLosses(tuple(sums), tuple(counts))

    def reduction(self) -> float | None:
        """Return 1 - (mean of the last epoch) / (mean of the first one), over rows.

        Epochs that max_steps cuts short are not compared. None where there are not two epochs with
        as many rows, or the first mean is not above 0.
        """
        whole = [at for at, rows in enumerate(self.rows) if rows == self.rows[0]]
        means = [self.sums[at] / self.rows[at] for at in whole]
        return 1 - means[-1] / means[0] if len(means) > 1 and means[0] > 0 else None


class StartEpochLosses(Stage):
    """Start without losses."""

    def run(self) -> EpochLosses:
        return EpochLosses()


class TrackEpochLoss(Stage):
    """Add the loss of a batch to its epoch."""

    def run(
        self, losses: EpochLosses, epoch: Epoch, batch: Batch, output: LossOutput
    ) -> EpochLosses:
        loss = summed_metrics(output.metrics)["loss"]
        return losses.added(epoch.number, loss, len(batch.data))

"""Weights of the members' votes, from their accuracy on rows that are not evaluated on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from kitchen.errors import ConfigError, DataError
from kitchen.ports import BlobStore, DatasetStore, ModelCatalog, TrainingClient
from kitchen.stage import Stage
from kitchen.statistics.intervals import interval
from kitchen.types import Metrics, Table
from stages.chat.prompts import item_of
from stages.data.dataset import HeldOut
from stages.data.splits import HeldOutRowsConfig
from stages.ensemble.evaluating import EnsembleEvaluation
from stages.ensemble.voted import VotedProblem
from stages.evaluate.checkpoint_eval import LoadHeldOut, held_out_splits
from stages.evaluate.graded_answers import measures_of
from stages.evaluate.record import NO_SCORE

PRIOR_ROWS = 10.0  # rows with the mean accuracy of all members that are added to those of each


@dataclass(frozen=True)
class MemberWeights:
    """The weights of the votes of each member, in their order."""

    weights: tuple[float, ...]


def vote_weights(right: Sequence[float], rows: Sequence[int]) -> list[float]:
    """Return -ln(1 - accuracy) of each member, from numbers of right answers and of rows.

    The answer with the largest sum is then the one whose voters are least likely to be all wrong,
    if members err independently. Accuracies are shrunk towards their mean, as if each member had
    answered PRIOR_ROWS rows more with the mean accuracy, since few rows say little; the mean is
    (right + 1) / (rows + 2) (Laplace), so that no weight is 0 or infinite.
    """
    mean = (sum(right) + 1) / (sum(rows) + 2)
    accuracies = [
        (hits + PRIOR_ROWS * mean) / (n + PRIOR_ROWS) for hits, n in zip(right, rows, strict=True)
    ]
    return [-math.log(1 - accuracy) for accuracy in accuracies]


class WeighMembers(Stage):
    """Measure the accuracy of each member on another split, and weigh its votes by it.

    Rows that are evaluated on are left out.
    """

    memoize = True
    dataset: str
    split: str | None  # None if votes are not weighed
    rows: int | None  # maximum number of rows; None for all
    reading: HeldOutRowsConfig
    splits: tuple[str, ...] | None  # evaluated on; None for the default
    evaluation: EnsembleEvaluation

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        store: DatasetStore,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
    ) -> tuple[MemberWeights, Metrics, Table]:
        rows, left_out = self._rows(store, held_out)
        every = replace(
            self.evaluation.ensemble,
            draws=1,
            vote="majority",
            mode="parallel" if self.evaluation.ensemble.mode == "parallel" else "sequential",
            enough=type(self.evaluation.ensemble).enough,
        )
        evaluation = replace(self.evaluation, ensemble=every)
        voted = await evaluation.answer(rows, [1.0] * len(every.members), client, models, blobs)
        [(name, problems)] = voted.sets.items()
        return weighed(name, voted.members, problems, left_out)

    def verify(self, store: DatasetStore) -> None:
        evaluated = held_out_splits(store, self.dataset, self.splits)
        held_out_splits(store, self.dataset, self._split)
        if self.split in evaluated:
            raise ConfigError(
                f"weigh_on={self.split} is evaluated on as well, so the votes would be weighed by "
                f"the answers that they are graded on: choose another split of {self.dataset}, or "
                "set splits to others"
            )

    @property
    def _split(self) -> tuple[str, ...]:
        return () if self.split is None else (self.split,)

    def _rows(self, store: DatasetStore, held_out: HeldOut) -> tuple[HeldOut, int]:
        """Return the rows to weigh on, and how many were left out as they are evaluated on."""
        reading = replace(self.reading, held_out=None, held_out_rows=None)
        metric = self.evaluation.config.metric
        load = LoadHeldOut(self.dataset, self._split, self.rows, reading, metric)
        loaded, _, _ = load.run(store)
        evaluated = set(map(item_of, chain.from_iterable(held_out.sets.values())))
        [(name, rows)] = loaded.sets.items()
        kept = tuple(row for row in rows if item_of(row) not in evaluated)
        if not kept:
            raise DataError(
                f"weigh_on={self.split}: all rows of this split are evaluated on as well"
            )
        return HeldOut({name: kept}), len(rows) - len(kept)


def weigh_members(stage: WeighMembers) -> tuple[Stage, ...]:
    """Return the stage that weighs votes, if they are weighted.

    Raises ConfigError if the split is missing or has no effect, or if there is nothing to weigh.
    """
    ensemble, split = stage.evaluation.ensemble, stage.split
    if ensemble.vote != "weighted":
        if split is None:
            return ()
        raise ConfigError(
            f"weigh_on={split} has no effect with vote={ensemble.vote}: set vote=weighted, or "
            "leave weigh_on out"
        )
    if split is None:
        raise ConfigError(
            "vote=weighted weighs members by their accuracy on another split than those that are "
            "evaluated on: name it, as in weigh_on=train"
        )
    if len(ensemble.members) < 2:
        raise ConfigError(
            "vote=weighted weighs members, and there is only one: choose vote=majority, or add "
            "members"
        )
    return (stage,)


def weighed(
    split: str, labels: Sequence[str], problems: Sequence[VotedProblem], left_out: int
) -> tuple[MemberWeights, Metrics, Table]:
    """Return the weights of the members, as metrics and as a table."""
    measure = next(iter(measures_of([problem.answer for problem in problems])))
    right: list[list[float]] = [[] for _ in labels]
    for problem in problems:
        for vote in problem.votes:
            if measure in vote.scores:
                right[vote.member].append(float(vote.scores[measure] == 1))
    weights = vote_weights([sum(hits) for hits in right], [len(hits) for hits in right])
    metrics, rows = Metrics(), list[tuple[str, ...]]()
    for label, hits, weight in zip(labels, right, weights, strict=True):
        accuracy = interval(hits).format() if hits else NO_SCORE
        metrics[f"{split}/weight/{label}"] = weight
        rows.append((label, str(len(hits)), accuracy, f"{weight:.3f}"))
    note = f", without {left_out} rows that are evaluated on" if left_out else ""
    title = f"Weights of the members, by their accuracy on {split}{note}"
    columns = ("member", "rows", "accuracy, 95 % interval", "weight of a vote")
    return MemberWeights(tuple(weights)), metrics, Table(title, columns, tuple(rows))

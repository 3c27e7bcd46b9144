"""Weights of the members' votes, from their scores on rows that are not evaluated on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from kitchen.config.user_functions import is_function_name
from kitchen.errors import ConfigError, DataError
from kitchen.ports import BlobStore, DatasetStore, ModelCatalog, TrainingClient
from kitchen.stage import Stage
from kitchen.statistics.intervals import interval
from kitchen.statistics.samples import SHARE
from kitchen.types import Metrics, Price, Table
from stages.chat.prompts import item_of
from stages.data.dataset import HeldOut
from stages.data.splits import HeldOutRowsConfig
from stages.ensemble.config import ENOUGH, Mode
from stages.ensemble.evaluating import EnsembleEvaluation, question_counts
from stages.ensemble.voted import VotedProblem
from stages.evaluate.checkpoint_eval import LoadHeldOut, held_out_splits
from stages.evaluate.graded_answers import measures_of, score_bounds
from stages.evaluate.metric_functions import find_metric, measure_of
from stages.evaluate.record import NO_SCORE

PRIOR_ROWS = 10.0  # rows with the mean accuracy of all members that are added to those of each


@dataclass(frozen=True)
class MemberWeights:
    """The weights of the votes of each member, in their order."""

    weights: tuple[float, ...]


def vote_weights(
    right: Sequence[float], rows: Sequence[int], wrong_answers: float = 1.0
) -> list[float]:
    """Return ln(a / (1 - a)) + ln(wrong_answers) of each member, where a is its accuracy.

    These are the log-likelihood ratios of a vote, for members that err independently and choose
    each of `wrong_answers` wrong answers equally often, so the answer with the largest sum is the
    likeliest (Nitzan and Paroush, 1982, doi:10.2307/2526438; Grofman, Owen and Feld, 1983,
    doi:10.1007/BF00125672). A member that is worse than chance has the weight 0; if all are, all
    have the weight 1.

    `right` is the sum of scores from 0 to 1 over as many `rows`. Accuracies are shrunk towards
    their mean, as if each member had answered PRIOR_ROWS rows more with the mean accuracy, since
    few rows say little; the mean is (right + 1) / (rows + 2) (Laplace), so no weight is infinite.
    """
    mean = (sum(right) + 1) / (sum(rows) + 2)
    accuracies = [
        (hits + PRIOR_ROWS * mean) / (n + PRIOR_ROWS) for hits, n in zip(right, rows, strict=True)
    ]
    weights = [max(0.0, math.log(a / (1 - a) * wrong_answers)) for a in accuracies]
    return weights if any(weights) else [1.0] * len(weights)


def count_wrong_answers(problems: Sequence[VotedProblem], measure: str, most: float) -> float:
    """Estimate between how many wrong answers members choose: 1 for yes or no, else more.

    It is the inverse of the share of pairs of wrong votes on a problem that are equal, which is
    exact if all wrong answers are equally frequent. One equal pair is added, so that it is finite.
    """
    equal = pairs = 0
    for problem in problems:
        wrong = [vote.group for vote in problem.votes if vote.scores.get(measure, most) < most]
        sizes = Counter(wrong).values()
        pairs += math.comb(len(wrong), 2)
        equal += sum(math.comb(size, 2) for size in sizes)
    return (pairs + 1) / (equal + 1)


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
        asking, equal = self._asking, [1.0] * len(self.evaluation.ensemble.members)
        voted = await asking.answer(rows, equal, client, models, blobs)
        [(name, problems)] = voted.sets.items()
        return weighed(name, voted.members, problems, left_out)

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        store: DatasetStore,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
        price: Price | None = None,
    ) -> Table:
        rows, _ = self._rows(store, held_out)
        tokenizers = self.evaluation.tokenizers(client, models, blobs)
        title = f"Questions on {self.split}, for the weights of the members"
        return question_counts(title, self._asking, rows, tokenizers, price)

    def verify(self, store: DatasetStore) -> None:
        _check_bounds(self.evaluation.config.metric)
        evaluated = held_out_splits(store, self.dataset, self.splits)
        held_out_splits(store, self.dataset, self._split)
        if self.split in evaluated:
            raise ConfigError(
                f"weigh_on={self.split} is evaluated on as well, so the votes would be weighed by "
                f"the answers that they are graded on: choose another split of {self.dataset}, or "
                "set splits to others"
            )

    @property
    def _asking(self) -> EnsembleEvaluation:
        """The evaluation that asks all members each row once."""
        ensemble = self.evaluation.ensemble
        mode: Mode = "parallel" if ensemble.mode == "parallel" else "sequential"
        every = replace(ensemble, draws=1, vote="majority", mode=mode, enough=ENOUGH)
        return replace(self.evaluation, ensemble=every)

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
    answers = [problem.answer for problem in problems]
    measure = next(iter(measures_of(answers)))
    low, high = score_bounds(answers, measure)
    scores: list[list[float]] = [[] for _ in labels]
    for problem in problems:
        for vote in problem.votes:
            if measure in vote.scores:
                scores[vote.member].append((vote.scores[measure] - low) / (high - low))
    has_parts = not {*chain.from_iterable(scores)} <= {0.0, 1.0}
    wrong = 1.0 if has_parts else count_wrong_answers(problems, measure, high)
    weights = vote_weights([sum(each) for each in scores], [len(each) for each in scores], wrong)
    every = list(chain.from_iterable(problem.votes for problem in problems))
    tokens = sum(vote.prompt_tokens + vote.answer_tokens for vote in every)
    metrics = Metrics({f"{split}/wrong_answers": wrong, f"{split}/tokens": float(tokens)})
    rows = list[tuple[str, ...]]()
    for label, of_member, weight in zip(labels, scores, weights, strict=True):
        score = interval(of_member, bounds=SHARE).format() if of_member else NO_SCORE
        metrics[f"{split}/weight/{label}"] = weight
        rows.append((label, str(len(of_member)), score, f"{weight:.3f}"))
    note = f", without {left_out} rows that are evaluated on" if left_out else ""
    title = f"Weights of the members, by their scores on {split}{note}"
    columns = ("member", "rows", "score, 95 % interval", "weight of a vote")
    return MemberWeights(tuple(weights)), metrics, Table(title, columns, tuple(rows))


def _check_bounds(metric: str | None) -> None:
    """Raise ConfigError for a metric function whose scores cannot be scaled to 0..1."""
    if metric is None or not is_function_name(metric):
        return
    low, high = find_metric(metric).bounds
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(
            f"vote=weighted needs scores with two bounds, and those of {metric} are {low:g} and "
            f"{high:g}: state them after the function, as in {measure_of(metric)}.bounds = (0, 1), "
            "or choose vote=majority"
        )

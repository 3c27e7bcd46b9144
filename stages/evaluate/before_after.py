"""Comparison of evaluations before and after training, on the same held-out problems."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen.errors import QualityError
from kitchen.stage import Stage
from kitchen.statistics.intervals import interval, paired_interval
from kitchen.statistics.samples import NON_NEGATIVE, SHARE, Bounds
from kitchen.types import Metrics, Table
from stages.evaluate.choices import CHOICE_MEASURES, ScoredChoices
from stages.evaluate.evaluation import EvaluationAfter, EvaluationBefore, Likelihood
from stages.evaluate.graded_answers import GradedAnswer, failure_counts, measures_of, score_bounds
from stages.evaluate.record import NO_SCORE, counted

_Rows = list[tuple[str, ...]]  # of a table


class CompareEvaluations(Stage):
    """Compare each held-out set before and after training, with intervals of the paired difference.

    Measures are exact match and field F1, or the loss of a set whose answers are not graded.
    """

    shown: int = 1  # answers per set to print side by side

    def run(self, before: EvaluationBefore, after: EvaluationAfter) -> tuple[Metrics, Table, Table]:
        metrics, rows = Metrics(), _Rows()
        for name, answers in after.answers.items():
            measured, lines = _compare_answers(before.answers[name], answers)
            metrics |= {f"{name}/{key}": value for key, value in measured.items()}
            rows += [(name, *line) for line in lines]
        for name, choices in after.choices.items():
            measured, lines = _compare_choices(before.choices[name], choices)
            metrics |= {f"{name}/{key}": value for key, value in measured.items()}
            rows += [(name, str(len(choices)), *line) for line in lines]
        for name, loss in after.losses.items():
            measured, lines = _compare_losses(before.losses[name], loss)
            metrics |= {f"{name}/{key}": value for key, value in measured.items()}
            rows += [(name, str(len(loss.nats)), *line) for line in lines]
        columns = ("held-out set", "n", "measure", "before", "after", "difference")
        table = Table("Held-out evaluation, 95 % intervals", columns, tuple(rows))
        return metrics, table, self._side_by_side(before, after)

    def _side_by_side(self, before: EvaluationBefore, after: EvaluationAfter) -> Table:
        rows = _Rows()
        for name, answers in after.answers.items():
            answers_before = before.answers[name][: self.shown]
            for old, new in zip(answers_before, answers[: self.shown], strict=True):
                rows.append((new.prompt, old.text, new.text, new.expected))
        return Table(
            "The same problems, before and after",
            ("prompt", "before", "after", "expected"),
            tuple(rows),
        )


def _compare_answers(
    before: Sequence[GradedAnswer], after: Sequence[GradedAnswer]
) -> tuple[Metrics, _Rows]:
    """Compare the answers of one set: n, the measure, before, after and the difference.

    A problem counts if neither of its two answers failed.
    """
    metrics, rows = Metrics(), _Rows()
    pairs = zip(before, after, strict=True)
    both = [(one, other) for one, other in pairs if one.scores and other.scores]
    n = counted(len(after), len(after) - len(both))
    for key, label in measures_of(after).items():
        if not both:
            rows.append((n, label, NO_SCORE, NO_SCORE, ""))
            continue
        old = [one.scores[key] for one, _ in both]
        new = [other.scores[key] for _, other in both]
        bounds = score_bounds(after, key)
        compared, row = _compare_scores(label, key, old, new, bounds)
        metrics |= compared
        rows.append((n, *row))
    failures_before, failures_after = failure_counts(before), failure_counts(after)
    for label, key in {**failures_before, **failures_after}:
        count_before = failures_before.get((label, key), 0)
        count_after = failures_after.get((label, key), 0)
        metrics[f"{key}_before"] = float(count_before)
        metrics[f"{key}_after"] = float(count_after)
        rows.append((str(len(after)), label, str(count_before), str(count_after), ""))
    return metrics, rows


def _compare_choices(
    before: Sequence[ScoredChoices], after: Sequence[ScoredChoices]
) -> tuple[Metrics, _Rows]:
    """Compare the choices of one set."""
    metrics, rows = Metrics(), _Rows()
    for (label, key), score in CHOICE_MEASURES.items():
        old = [float(score(row)) for row in before]
        new = [float(score(row)) for row in after]
        compared, row = _compare_scores(label, key, old, new)
        metrics |= compared
        rows.append(row)
    return metrics, rows


def _compare_scores(
    label: str, key: str, old: Sequence[float], new: Sequence[float], bounds: Bounds = SHARE
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Compare a score of the same problems before and after: metrics, and a row of the table."""
    gain = paired_interval(old, new, bounds=bounds)
    metrics = {
        f"{key}_before": sum(old) / len(old),
        f"{key}_after": sum(new) / len(new),
        f"{key}_gain": gain.estimate,
    }
    intervals = (interval(scores, bounds=bounds).format() for scores in (old, new))
    return metrics, (label, *intervals, gain.format(sign=True))


def _compare_losses(before: Likelihood, after: Likelihood) -> tuple[Metrics, _Rows]:
    """Compare the likelihoods of one set, with rows as those of `_compare_answers`."""
    metrics, rows = Metrics(), _Rows()
    for key, (label, new, sizes) in after.measures().items():
        _, old, _ = before.measures()[key]
        mean_before = interval(old, sizes, bounds=NON_NEGATIVE)
        mean_after = interval(new, sizes, bounds=NON_NEGATIVE)
        change = paired_interval(old, new, sizes, bounds=NON_NEGATIVE)
        metrics |= {f"{key}_before": mean_before.estimate, f"{key}_after": mean_after.estimate}
        means = mean_before.format(4), mean_after.format(4)
        rows.append((label, *means, change.format(4, sign=True)))
    return metrics, rows


class QualityGate(Stage):
    """Fail the run if exact match on the first held-out set is below `at_least`.

    If the set was scored by a metric function, its mean counts instead.
    """

    at_least: float  # 0..1; 0 for no target

    def run(self, after: EvaluationAfter) -> None:
        if self.at_least == 0:
            return
        right = after.right()
        if not right:
            raise QualityError(
                f"the target is an exact match of {self.at_least:g}, but no held-out set has "
                "graded answers"
            )
        for name, (label, scores) in list(right.items())[:1]:
            if not scores:
                raise QualityError(
                    f"the target is {label} of {self.at_least:g}, but no answer of {name} could be "
                    "compared with its reference answer; samples.jsonl has the reasons"
                )
            mean = sum(scores) / len(scores)
            if mean < self.at_least:
                raise QualityError(
                    f"{label} on {name} is {mean:.3f}, below the target of {self.at_least:g}"
                )

"""Before against after, on the same held-out problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kitchen.errors import QualityError
from kitchen.stage import Stage
from kitchen.statistics.intervals import interval, paired_bootstrap, ratio_bootstrap
from kitchen.types import Metrics, Table
from stages.evaluate.evaluation import EvaluationAfter, EvaluationBefore, Likelihood
from stages.evaluate.graded_answers import GradedAnswer, failure_counts

_MEASURES: Mapping[str, Callable[[GradedAnswer], float]] = {
    "exact match": lambda answer: answer.exact,
    "field F1": lambda answer: answer.f1,
}


class CompareEvaluations(Stage):
    """Exact match, field F1 or the loss, before and after, and the difference by a paired
    bootstrap, set by set.
    """

    seed: int = 0
    shown: int = 1  # answers of each set printed side by side

    def run(self, before: EvaluationBefore, after: EvaluationAfter) -> tuple[Metrics, Table, Table]:
        metrics, rows = Metrics(), list[tuple[str, ...]]()
        for name, answers in after.answers.items():
            found, lines = _compared(before.answers[name], answers, self.seed)
            metrics |= {f"{name}/{key}": value for key, value in found.items()}
            rows += [(name, str(len(answers)), *line) for line in lines]
        for name, loss in after.losses.items():
            found, lines = _likelier(before.losses[name], loss, self.seed)
            metrics |= {f"{name}/{key}": value for key, value in found.items()}
            rows += [(name, str(len(loss.nats)), *line) for line in lines]
        columns = ("held-out set", "n", "measure", "before", "after", "difference")
        compared = Table("Held-out evaluation, 95 % intervals", columns, tuple(rows))
        return metrics, compared, self._side_by_side(before, after)

    def _side_by_side(self, before: EvaluationBefore, after: EvaluationAfter) -> Table:
        rows = [
            (new.prompt, old.text, new.text, new.expected)
            for name, answers in after.answers.items()
            for old, new in zip(
                before.answers[name][: self.shown], answers[: self.shown], strict=True
            )
        ]
        return Table(
            "The same problems, before and after",
            ("asked", "before", "after", "wanted"),
            tuple(rows),
        )


def _compared(
    old: Sequence[GradedAnswer], new: Sequence[GradedAnswer], seed: int
) -> tuple[Metrics, list[tuple[str, ...]]]:
    """Of one set: its metrics, and lines of measure, before, after and difference."""
    metrics, lines = Metrics(), list[tuple[str, ...]]()
    for what, read in _MEASURES.items():
        was, now = ([float(read(each)) for each in answers] for answers in (old, new))
        key, gain = what.replace(" ", "_").lower(), paired_bootstrap(was, now, seed=seed)
        metrics |= {
            f"{key}_before": sum(was) / len(was),
            f"{key}_after": sum(now) / len(now),
            f"{key}_gain": gain.estimate,
        }
        lines.append(
            (
                what,
                interval(was, seed).format(),
                interval(now, seed).format(),
                gain.format(sign=True),
            )
        )
    were, are = failure_counts(old), failure_counts(new)
    for what, key in {**were, **are}:
        counts = [found.get((what, key), 0) for found in (were, are)]
        metrics |= {f"{key}_before": float(counts[0]), f"{key}_after": float(counts[1])}
        lines.append((what, *map(str, counts), ""))
    return metrics, lines


def _likelier(old: Likelihood, new: Likelihood, seed: int) -> tuple[Metrics, list[tuple[str, ...]]]:
    """The same of a set that has no answers to compare."""
    metrics, lines = Metrics(), list[tuple[str, ...]]()
    for key, (what, now, sizes) in new.measures().items():
        was = old.measures()[key][1]
        first, second, change = (
            ratio_bootstrap(each, sizes, seed) for each in (was, now, now - was)
        )
        metrics |= {f"{key}_before": first.estimate, f"{key}_after": second.estimate}
        lines.append((what, first.format(4), second.format(4), change.format(4, sign=True)))
    return metrics, lines


class QualityGate(Stage):
    """Fail the run if exact match on the first held-out set stays below `at_least`."""

    at_least: float

    def run(self, after: EvaluationAfter) -> None:
        if self.at_least > 0 and not after.answers:
            raise QualityError(
                f"the target is an exact match of {self.at_least:g}, and no answers can be compared"
            )
        for name, answers in list(after.answers.items())[:1]:
            reached = sum(a.exact for a in answers) / len(answers)
            if reached < self.at_least:
                raise QualityError(
                    f"exact match on {name} is {reached:.3f}, below the target of {self.at_least:g}"
                )

"""Before against after, on the same held-out problems."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen.errors import QualityError
from kitchen.stage import Stage
from kitchen.types import Metrics, Table
from stages.data import HeldOut
from stages.evaluation import After, Answer, Before
from stages.statistics import paired_bootstrap, wilson


class Compare(Stage):
    """Exact match with Wilson intervals, field F1, and the difference with a paired bootstrap, set by set."""

    seed: int = 0
    shown: int = 1  # answers of each set printed side by side

    def run(self, before: Before, after: After, held_out: HeldOut) -> tuple[Metrics, Table, Table]:
        metrics, rows = Metrics(), list[tuple[str, ...]]()
        for name, new in after.answers.items():
            old = before.answers[name]
            metrics |= _metrics(name, "before", old) | _metrics(name, "after", new)
            for what, values in (("exact match", [a.exact for a in old]), ("field F1", [a.f1 for a in old])):
                now = [a.exact if what == "exact match" else a.f1 for a in new]
                gain = paired_bootstrap([float(v) for v in values], [float(v) for v in now], seed=self.seed)
                metrics[f"{name}/{what.replace(' ', '_').lower()}_gain"] = gain.estimate
                rows.append((name, str(len(new)), what, _shown(values), _shown(now),
                             f"{gain.estimate:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"))
            cut = [str(sum(a.truncated for a in answers)) for answers in (old, new)]
            rows.append((name, str(len(new)), "cut short", *cut, ""))
        for name, nats in after.nats.items():
            metrics |= {f"{name}/loss_before": before.nats[name], f"{name}/loss_after": nats}
            losses = (f"{before.nats[name]:.4f}", f"{nats:.4f}", f"{nats - before.nats[name]:+.4f}")
            rows.append((name, str(len(held_out.sets[name])), "loss, nats per token", *losses))
        columns = ("held-out set", "n", "measure", "before", "after", "difference")
        scores = Table("Held-out evaluation, 95 % intervals", columns, tuple(rows))
        return metrics, scores, self._side_by_side(before, after)

    def _side_by_side(self, before: Before, after: After) -> Table:
        rows = [(new.prompt, old.text, new.text, new.wanted) for name, answers in after.answers.items()
                for old, new in zip(before.answers[name][: self.shown], answers[: self.shown], strict=True)]
        return Table("The same problems, before and after", ("asked", "before", "after", "wanted"), tuple(rows))


def _metrics(name: str, when: str, answers: Sequence[Answer]) -> Metrics:
    count = len(answers)
    return Metrics({
        f"{name}/exact_match_{when}": sum(a.exact for a in answers) / count,
        f"{name}/field_f1_{when}": sum(a.f1 for a in answers) / count,
        f"{name}/truncated_{when}": float(sum(a.truncated for a in answers)),
    })


def _shown(values: Sequence[float]) -> str:
    """A mean; of yes-or-no values, with its interval."""
    mean = sum(values) / len(values)
    if not all(isinstance(value, bool) for value in values):
        return f"{mean:.3f}"
    low, high = wilson(sum(map(int, values)), len(values))
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


class QualityGate(Stage):
    """Fail the run if exact match on the first held-out set stays below `at_least`."""

    at_least: float

    def run(self, after: After) -> None:
        for name, answers in list(after.answers.items())[:1]:
            reached = sum(a.exact for a in answers) / len(answers)
            if reached < self.at_least:
                raise QualityError(f"exact match on {name} is {reached:.3f}, below the target of {self.at_least:g}")

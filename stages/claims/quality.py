"""Quality targets of claim extraction, and the measures that they are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kitchen.errors import ConfigError
from kitchen.stage import Stage
from kitchen.statistics.intervals import Interval, interval
from kitchen.types import Metrics, Result, Table
from stages.claims.antagonist import AntagonistConfig, AntagonistReport, FlagAnswers
from stages.claims.claim_metrics import find_metrics
from stages.claims.evaluation import (
    SAMPLED_VALID,
    ClaimEvalConfig,
    ClaimEvaluation,
    scores_by_measure,
)
from stages.claims.loading import TrainClaims
from stages.claims.open_scorers import ScorerConfig
from stages.claims.semantics import SEMANTIC_MEASURES, ScoreSemantics, SemanticScores
from stages.evaluate.epoch_losses import EpochLosses
from stages.evaluate.exports import SavedExports
from stages.evaluate.targets import (
    TargetResult,
    Targets,
    exact,
    require_met,
    summarise,
    target_table,
)

# the targets that the project's source documents set. Those of entailment and overall_pass were
# set on scores of the label "neutral", which was read in place of "entailment" then.
AT_LEAST: Mapping[str, float] = MappingProxyType(
    {
        "schema": 0.95,
        "citation_valid": 0.95,
        "entailment": 0.50,
        "overall_pass": 0.45,
        "entailment_pass": 0.45,
        "similarity_pass": 0.35,
        "loss_reduction": 0.95,
    }
)
AT_MOST: Mapping[str, float] = MappingProxyType(
    {
        "high_flags": 0.0,
        "chirality": 0.55,
        "train_citation_invalid": 0.0,
        "convergence_steps": 500.0,
    }
)
# measures beside those of answers
OTHER_MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "high_flags": "answers that the antagonist flags as HIGH",
        "chirality": "mean chirality of the answers",
        "loss_reduction": "1 - mean training loss of the last whole epoch / that of the first one",
        "train_citation_invalid": "share of training rows that cite a document not in the prompt",
        "convergence_steps": "optimiser steps up to the lowest held-out loss",
    }
)

TRAINING_MEASURES = ("loss_reduction", "train_citation_invalid", "convergence_steps")


@dataclass(frozen=True)
class ClaimTargets(Targets):
    """Targets of claim extraction, by measure."""

    # smallest value that meets the target, by measure
    at_least: Mapping[str, float] = field(default_factory=lambda: dict(AT_LEAST))
    # largest value that meets the target, by measure
    at_most: Mapping[str, float] = field(default_factory=lambda: dict(AT_MOST))
    # whether the run ends with exit code 5 if a target is not met on the first held-out set; one
    # whose interval spans the target does not end it
    required: bool = False


def _of_answers(targets: Mapping[str, float]) -> dict[str, float]:
    return {name: bound for name, bound in targets.items() if name not in TRAINING_MEASURES}


@dataclass(frozen=True)
class AnswerTargets(ClaimTargets):
    """Targets of claim extraction where nothing is trained, by measure."""

    # smallest value that meets the target, by measure
    at_least: Mapping[str, float] = field(default_factory=lambda: _of_answers(AT_LEAST))
    # largest value that meets the target, by measure
    at_most: Mapping[str, float] = field(default_factory=lambda: _of_answers(AT_MOST))


@dataclass(frozen=True)
class CheckedTargets(Result):
    """Targets beside their values, by held-out set."""

    sets: Mapping[str, tuple[TargetResult, ...]]


class CheckTargets(Stage):
    """Compare the measures of each held-out set, and of training, with the targets.

    A target is met if the whole interval meets it. A measure that is missing does not meet its
    target.
    """

    targets: ClaimTargets
    evaluation: ClaimEvalConfig = ClaimEvalConfig()  # its metrics and draws can have targets

    def run(
        self,
        evaluation: ClaimEvaluation,
        semantics: SemanticScores,
        report: AntagonistReport,
        train: TrainClaims | None = None,
        losses: EpochLosses | None = None,
        exports: SavedExports | None = None,
    ) -> tuple[CheckedTargets, Metrics, Table]:
        of_training = training_measures(train, losses, exports)
        results = {}
        for name in evaluation.sets:
            measured = measures_of_set(name, evaluation, semantics, report)
            results[name] = self.targets.check({**measured, **of_training})
        metrics = Metrics()
        for name, found in results.items():
            for verdict in ("met", "cannot tell"):
                count = sum(each.verdict == verdict for each in found)
                metrics[f"{name}/targets_{verdict.replace(' ', '_')}"] = float(count)
        return CheckedTargets(results), metrics, target_table(results)

    def verify(self) -> None:
        self.evaluation.check_sampled("targets", self.targets.names)
        others = (SAMPLED_VALID, *SEMANTIC_MEASURES, *OTHER_MEASURES)
        if taken := [name for name in find_metrics(self.evaluation.metrics) if name in others]:
            raise ConfigError(
                f"evaluation.metrics: there is already a measure {taken[0]!r}; rename the function"
            )
        known = (*self.evaluation.measures, *others)
        self.targets.check_names("targets", known)


class RequireTargets(Stage):
    """End the run with exit code 5 if a target is not met on the first held-out set.

    It follows CheckTargets, so that the run has recorded all targets and their values by then.
    """

    def run(self, checked: CheckedTargets) -> None:
        for name, found in list(checked.sets.items())[:1]:
            require_met(found, f"{name}: {summarise(found)}")


def quality_stages(
    scorers: ScorerConfig,
    antagonist: AntagonistConfig,
    targets: ClaimTargets,
    evaluation: ClaimEvalConfig,
) -> tuple[Stage, ...]:
    """Return the stages behind an evaluation: scores of meaning, flags and targets."""
    checked = CheckTargets(targets, evaluation)
    stages = ScoreSemantics(scorers), FlagAnswers(antagonist), checked
    return (*stages, RequireTargets()) if targets.required else stages


def measures_of_set(
    name: str, evaluation: ClaimEvaluation, semantics: SemanticScores, report: AntagonistReport
) -> dict[str, Interval]:
    """Return the measures of one held-out set with their intervals; those that are missing, not."""
    scores = scores_by_measure(evaluation.sets[name])
    scores |= scores_by_measure(semantics.sets[name])
    measured = {measure: interval(values) for measure, values in scores.items()}
    answers = report.sets.get(name, ())
    if answers:
        count = sum(answer.severity == "HIGH" for answer in answers)
        measured["high_flags"] = exact(float(count), len(answers))
        measured["chirality"] = interval([answer.metrics["chirality"] for answer in answers])
    return measured


def training_measures(
    train: TrainClaims | None, losses: EpochLosses | None, exports: SavedExports | None
) -> dict[str, Interval]:
    """Return the measures of training, which are known exactly; none without training."""
    if train is None or losses is None or exports is None:
        return {}
    rows = [row for row in train.rows if row.answer is not None]
    measured = {}
    if rows:
        invalid = sum(not row.answer.cited <= row.documents.keys() for row in rows if row.answer)
        measured["train_citation_invalid"] = exact(invalid / len(rows), len(rows))
    reduction = losses.reduction()
    if reduction is not None:
        measured["loss_reduction"] = exact(reduction, losses.rows[0])
    if exports.best is not None:
        measured["convergence_steps"] = exact(float(exports.best.step), 0)
    return measured

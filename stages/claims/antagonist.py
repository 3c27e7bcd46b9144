"""The antagonist: a search of answers for invalid citations, contradictions and weak evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from kitchen.ports import BlobStore
from kitchen.secrets import masked
from kitchen.stage import Stage
from kitchen.statistics.intervals import clopper_pearson, interval
from kitchen.types import Metrics, Result, RunId, Table
from stages.claims.answer import ClaimAnswer, parse_answer
from stages.claims.calibration import NOT_MEASURED, Calibration
from stages.claims.evaluation import ClaimEvaluation, ScoredAnswer, interval_metrics
from stages.claims.loading import HeldOutClaims
from stages.claims.measures import relations_by_document
from stages.claims.rows import ClaimRow
from stages.claims.semantics import Assertion, SemanticScores
from stages.claims.topology import check_graph_package, topology

Severity = Literal["HIGH", "MEDIUM"]
ORDER: Sequence[Severity] = ("HIGH", "MEDIUM")  # of severities, highest first
_SHOWN = ("schema", "citation_valid", "answer_exact")  # scores that a flag repeats
FLAGS_FILE = "antagonist_flags.jsonl"  # in the run's folder

CITATION_INVALID = "CITATION_INVALID"
POLARITY_CONFLICT = "POLARITY_CONFLICT"
POLARITY_CONTRADICTION = "POLARITY_CONTRADICTION"
WEAK_ENTAILMENT = "WEAK_ENTAILMENT"
SCHEMA = "SCHEMA"
DUPLICATE_ID = "DUPLICATE_ID"
SEVERITIES: Mapping[str, Severity] = {
    CITATION_INVALID: "HIGH",  # cites a document that the prompt lacks
    POLARITY_CONFLICT: "HIGH",  # a document both supports and refutes the same claim
    POLARITY_CONTRADICTION: "MEDIUM",  # documents disagree about a claim
    WEAK_ENTAILMENT: "MEDIUM",  # a cited document does not entail what the answer says it does
    SCHEMA: "MEDIUM",  # a line that cannot be read, or lines that do not fit together
    DUPLICATE_ID: "MEDIUM",  # several claims with the same id
}


@dataclass(frozen=True)
class AntagonistConfig:
    """Thresholds of the antagonist."""

    # chirality from which evidence is flagged as contradictory; 1 where as many documents support a
    # claim as refute it
    chirality: Annotated[float, Field(gt=0, le=1)] = 0.55
    # probability of entailment below which evidence is flagged as weak
    entailment: Annotated[float, Field(ge=0, le=1)] = 0.5


@dataclass(frozen=True)
class Issue:
    """One problem of an answer: a key of SEVERITIES, and where it is."""

    type: str
    details: Mapping[str, Any]

    @property
    def severity(self) -> Severity:
        return SEVERITIES[self.type]


@dataclass(frozen=True)
class CheckedAnswer:
    """One answer with the issues that were found, none if it is not flagged."""

    claim_id: str
    set: str
    attempt: int
    issues: tuple[Issue, ...]
    metrics: Mapping[str, float]

    @property
    def severity(self) -> Severity | None:
        """The highest severity of its issues; None without issues."""
        found = {issue.severity for issue in self.issues}
        return next((severity for severity in ORDER if severity in found), None)

    def has(self, issue: str) -> bool:
        """Return whether an issue of this type was found."""
        return any(found.type == issue for found in self.issues)

    def record(self) -> Mapping[str, Any]:
        """Return the answer as a line of antagonist_flags.jsonl."""
        issues = [{"issue_type": each.type, "details": dict(each.details)} for each in self.issues]
        return {
            "claim_id": self.claim_id,
            "set": self.set,
            "try": self.attempt,
            "severity": self.severity,
            "issues": issues,
            "metrics": dict(self.metrics),
        }


def find_issues(
    answer: ClaimAnswer,
    documents: Sequence[str] | Mapping[str, str],
    config: AntagonistConfig,
    assertions: Sequence[Assertion] | None = None,
) -> tuple[Issue, ...]:
    """Return the issues of an answer to a prompt with these documents.

    `assertions` have the entailment of a calibrated scorer; without one, evidence is not checked
    for weakness.
    """
    return (
        *_schema_issues(answer),
        *_citation_issues(answer, documents),
        *_polarity_issues(answer, config),
        *_weak_evidence(assertions or (), config),
    )


def _schema_issues(answer: ClaimAnswer) -> Iterator[Issue]:
    if answer.duplicates:
        yield Issue(DUPLICATE_ID, {"ids": list(answer.duplicates)})
    repeated = {f"several claims have the id {id}" for id in answer.duplicates}
    problems = [problem for problem in answer.problems if problem not in repeated]
    if problems:
        yield Issue(SCHEMA, {"problems": problems})


def _citation_issues(
    answer: ClaimAnswer, documents: Sequence[str] | Mapping[str, str]
) -> Iterator[Issue]:
    invalid = sorted(answer.cited - set(documents))
    if invalid:
        yield Issue(CITATION_INVALID, {"cited": invalid, "in_prompt": sorted(documents)})


def _polarity_issues(answer: ClaimAnswer, config: AntagonistConfig) -> Iterator[Issue]:
    conflicts = []
    for document, relations in sorted(relations_by_document(answer).items()):
        by_target: dict[str, set[str]] = {}
        for relation in relations:
            verb, _, target = relation.partition(" ")
            by_target.setdefault(target, set()).add(verb)
        both = sorted(target for target, verbs in by_target.items() if len(verbs) > 1)
        conflicts += [{"document": document, "claim": target} for target in both]
    if conflicts:
        yield Issue(POLARITY_CONFLICT, {"both_supports_and_refutes": conflicts})
    chirality = topology(answer).chirality
    if chirality >= config.chirality:
        yield Issue(POLARITY_CONTRADICTION, {"chirality": chirality, "threshold": config.chirality})


def _weak_evidence(assertions: Sequence[Assertion], config: AntagonistConfig) -> Iterator[Issue]:
    weak = [vars(each) for each in assertions if each.entailment < config.entailment]
    if weak:
        yield Issue(WEAK_ENTAILMENT, {"assertions": weak, "threshold": config.entailment})


def check_answer(
    answer: ScoredAnswer,
    row: ClaimRow,
    name: str,
    config: AntagonistConfig,
    assertions: Sequence[Assertion] | None = None,
) -> CheckedAnswer:
    """Check one answer of the set `name`; see `find_issues`."""
    parsed = parse_answer(answer.text)
    shape = topology(parsed)
    metrics = {
        "chirality": shape.chirality,
        "cycles": float(shape.cycles),
        "polarity_conflict": float(shape.polarity_conflict),
        **{key: answer.scores[key] for key in _SHOWN if key in answer.scores},
    }
    if assertions:
        metrics["entailment"] = sum(each.entailment for each in assertions) / len(assertions)
    issues = list(find_issues(parsed, row.documents, config, assertions))
    if answer.truncated and all(issue.type != SCHEMA for issue in issues):
        issues.append(Issue(SCHEMA, {"problems": list(answer.problems)}))
    return CheckedAnswer(row.id, name, answer.attempt, tuple(issues), metrics)


@dataclass(frozen=True)
class AntagonistReport(Result):
    """All answers of an evaluation, checked, by set."""

    sets: Mapping[str, tuple[CheckedAnswer, ...]] = field(default_factory=dict)
    weak_checked: bool = False  # whether evidence was checked for weakness


class FlagAnswers(Stage):
    """Check all answers, and write those with issues to antagonist_flags.jsonl in the run's folder.

    Weak evidence is found only if a calibrated scorer has measured the entailment.
    """

    config: AntagonistConfig = AntagonistConfig()

    def verify(self) -> None:
        check_graph_package()

    def run(
        self,
        evaluation: ClaimEvaluation,
        held_out: HeldOutClaims,
        semantics: SemanticScores,
        calibration: Calibration,
        blobs: BlobStore,
        run: RunId,
    ) -> tuple[AntagonistReport, Metrics, Table]:
        sets: dict[str, tuple[CheckedAnswer, ...]] = {}
        for name, answers in evaluation.sets.items():
            rows = held_out.sets[name]
            checked = []
            for answer, scored in zip(answers, semantics.sets[name], strict=True):
                assertions = scored.assertions if calibration.trusted else None
                row = rows[answer.row]
                checked.append(check_answer(answer, row, name, self.config, assertions))
            sets[name] = tuple(checked)
        report = AntagonistReport(sets, calibration.trusted)
        blobs.write(f"{run.id}/{FLAGS_FILE}", flag_lines(report))
        return report, *antagonist_summary(report)


def flag_lines(report: AntagonistReport) -> bytes:
    """Return the flagged answers of all sets as JSON lines, without secrets."""
    lines = []
    for answers in report.sets.values():
        flagged = [answer.record() for answer in answers if answer.issues]
        lines += [json.dumps(masked(record), ensure_ascii=False) + "\n" for record in flagged]
    return "".join(lines).encode()


def antagonist_summary(report: AntagonistReport) -> tuple[Metrics, Table]:
    """Return how many answers have each issue, as metrics and as a table with intervals."""
    metrics, rows = Metrics(), list[tuple[str, ...]]()
    for name, answers in report.sets.items():
        n = len(answers)
        if not n:
            continue
        for issue, severity in SEVERITIES.items():
            if issue == WEAK_ENTAILMENT and not report.weak_checked:
                rows.append((name, issue, severity, "0", NOT_MEASURED, ""))
                continue
            count = sum(each.has(issue) for each in answers)
            rows.append((name, issue, severity, str(n), str(count), _share(count, n)))
            metrics[f"{name}/flag_{issue.lower()}"] = count / n
        for severity in ORDER:
            count = sum(each.severity == severity for each in answers)
            metrics[f"{name}/{severity.lower()}_flags"] = float(count)
        flagged = sum(bool(each.issues) for each in answers)
        metrics[f"{name}/flagged"] = flagged / n
        rows.append((name, "any issue", "", str(n), str(flagged), _share(flagged, n)))
        chirality = interval([each.metrics["chirality"] for each in answers])
        metrics |= interval_metrics(f"{name}/chirality", chirality)
        rows.append((name, "mean chirality", "", str(n), "", chirality.format()))
        wrong = [each for each in answers if each.metrics.get("answer_exact") == 0]
        if wrong:
            found = sum(bool(each.issues) for each in wrong)
            metrics[f"{name}/coverage"] = found / len(wrong)
            share = _share(found, len(wrong))
            rows.append((name, "coverage: wrong answers", "", str(len(wrong)), str(found), share))
    columns = ("set", "issue", "severity", "checked", "flagged", "share of the checked")
    return metrics, Table("Antagonist, 95 % intervals", columns, tuple(rows))


def _share(count: int, n: int) -> str:
    return clopper_pearson(count, n).format()

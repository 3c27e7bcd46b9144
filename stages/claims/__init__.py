"""Claim extraction: SciFact data, answers as claim lines, and their measures."""

from stages.claims.answer import Claim, ClaimAnswer, Relation, parse_answer
from stages.claims.evaluation import (
    ClaimEvalConfig,
    ClaimEvaluation,
    EvaluateClaims,
    EvaluateClaimWeights,
    ReportClaims,
)
from stages.claims.gate import (
    GateConfig,
    RunTestSuite,
    SchemaConfig,
    SkipGate,
    SuiteConfig,
    ValidateData,
    gate_stages,
)
from stages.claims.loading import HeldOutClaims, LoadClaims, LoadHeldOutClaims, TrainClaims
from stages.claims.measures import score_answer
from stages.claims.rows import ClaimRow, row_of_texts, scifact_row
from stages.claims.scifact import Document, EvidenceSet, ScifactClaim, read_claims, read_corpus
from stages.claims.suite import SuiteResult, run_test_suite
from stages.claims.token_weights import LineWeights
from stages.claims.training import (
    CLAIMS,
    CitationPenalty,
    ForwardBackwardClaims,
    RenderClaims,
    ReportClaimStep,
    ShuffledClaims,
    TokenWeights,
    penalty_reference,
)
from stages.claims.validation import DataProblem, DataReport, SchemaField, validate_file

__all__ = [
    "CLAIMS",
    "CitationPenalty",
    "Claim",
    "ClaimAnswer",
    "ClaimEvalConfig",
    "ClaimEvaluation",
    "ClaimRow",
    "DataProblem",
    "DataReport",
    "Document",
    "EvaluateClaimWeights",
    "EvaluateClaims",
    "EvidenceSet",
    "ForwardBackwardClaims",
    "GateConfig",
    "HeldOutClaims",
    "LineWeights",
    "LoadClaims",
    "LoadHeldOutClaims",
    "Relation",
    "RenderClaims",
    "ReportClaimStep",
    "ReportClaims",
    "RunTestSuite",
    "SchemaConfig",
    "SchemaField",
    "ScifactClaim",
    "ShuffledClaims",
    "SkipGate",
    "SuiteConfig",
    "SuiteResult",
    "TokenWeights",
    "TrainClaims",
    "ValidateData",
    "gate_stages",
    "parse_answer",
    "penalty_reference",
    "read_claims",
    "read_corpus",
    "row_of_texts",
    "run_test_suite",
    "scifact_row",
    "score_answer",
    "validate_file",
]

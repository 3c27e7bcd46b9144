"""Claim extraction: SciFact data, answers as claim lines, and their measures."""

from stages.claims.answer import Claim, ClaimAnswer, Relation, parse_answer
from stages.claims.antagonist import AntagonistConfig, AntagonistReport, FlagAnswers
from stages.claims.calibration import CalibrateEntailment, Calibration, scorer_stages
from stages.claims.evaluation import (
    ClaimEvalConfig,
    ClaimEvaluation,
    EvaluateClaims,
    EvaluateClaimWeights,
    ReportClaims,
)
from stages.claims.gate import (
    AbsolutePath,
    GateConfig,
    RequestFeatures,
    RunTestSuite,
    SchemaConfig,
    SkipGate,
    SuiteConfig,
    ValidateData,
    gate_stages,
)
from stages.claims.loading import HeldOutClaims, LoadClaims, LoadHeldOutClaims, TrainClaims
from stages.claims.measures import score_answer
from stages.claims.monitor import MonitorClaims, monitor_claims
from stages.claims.open_scorers import OpenScorers, ScorerConfig, Scorers
from stages.claims.pipeline import ClaimPipeline
from stages.claims.quality import (
    AnswerTargets,
    CheckedTargets,
    CheckTargets,
    ClaimTargets,
    RequireTargets,
    quality_stages,
)
from stages.claims.rows import ClaimRow, row_of_texts, scifact_row
from stages.claims.scifact import Document, EvidenceSet, ScifactClaim, read_claims, read_corpus
from stages.claims.semantics import ScoreSemantics, SemanticScores
from stages.claims.setup import set_up_data
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
from stages.claims.written_files import (
    ExportCheckpoint,
    OutputConfig,
    ReadPredictions,
    WritePredictions,
    output_stages,
    write_predictions,
)

__all__ = [
    "CLAIMS",
    "AbsolutePath",
    "AnswerTargets",
    "AntagonistConfig",
    "AntagonistReport",
    "CalibrateEntailment",
    "Calibration",
    "CheckTargets",
    "CheckedTargets",
    "CitationPenalty",
    "Claim",
    "ClaimAnswer",
    "ClaimEvalConfig",
    "ClaimEvaluation",
    "ClaimPipeline",
    "ClaimRow",
    "ClaimTargets",
    "DataProblem",
    "DataReport",
    "Document",
    "EvaluateClaimWeights",
    "EvaluateClaims",
    "EvidenceSet",
    "ExportCheckpoint",
    "FlagAnswers",
    "ForwardBackwardClaims",
    "GateConfig",
    "HeldOutClaims",
    "LineWeights",
    "LoadClaims",
    "LoadHeldOutClaims",
    "MonitorClaims",
    "OpenScorers",
    "OutputConfig",
    "ReadPredictions",
    "Relation",
    "RenderClaims",
    "ReportClaimStep",
    "ReportClaims",
    "RequestFeatures",
    "RequireTargets",
    "RunTestSuite",
    "SchemaConfig",
    "SchemaField",
    "ScifactClaim",
    "ScoreSemantics",
    "ScorerConfig",
    "Scorers",
    "SemanticScores",
    "ShuffledClaims",
    "SkipGate",
    "SuiteConfig",
    "SuiteResult",
    "TokenWeights",
    "TrainClaims",
    "ValidateData",
    "WritePredictions",
    "gate_stages",
    "monitor_claims",
    "output_stages",
    "parse_answer",
    "penalty_reference",
    "quality_stages",
    "read_claims",
    "read_corpus",
    "row_of_texts",
    "run_test_suite",
    "scifact_row",
    "score_answer",
    "scorer_stages",
    "set_up_data",
    "validate_file",
    "write_predictions",
]

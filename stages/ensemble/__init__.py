"""Ensembles: several members answer each problem, and a vote decides."""

from stages.ensemble.ask_members import AskMembers, drop_bad_questions, identify_members
from stages.ensemble.config import EnsembleConfig, Mode
from stages.ensemble.evaluating import EnsembleEvaluation
from stages.ensemble.report import CompareMembers, ReportVotes
from stages.ensemble.voting import Outcome, Vote, VotingRule
from stages.ensemble.weighing import WeighMembers, weigh_members

__all__ = [
    "AskMembers",
    "CompareMembers",
    "EnsembleConfig",
    "EnsembleEvaluation",
    "Mode",
    "Outcome",
    "ReportVotes",
    "Vote",
    "VotingRule",
    "WeighMembers",
    "drop_bad_questions",
    "identify_members",
    "weigh_members",
]

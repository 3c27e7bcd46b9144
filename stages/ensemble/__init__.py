"""Ensembles: several members answer each problem, and a vote decides."""

from stages.ensemble.voting import Outcome, Vote, VotingRule

__all__ = ["Outcome", "Vote", "VotingRule"]

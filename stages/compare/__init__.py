"""Comparison of runs: their recorded scores item by item, with a verdict."""

from stages.compare.compare_runs import CompareRuns
from stages.compare.comparing import CompareOptions

__all__ = ["CompareOptions", "CompareRuns"]

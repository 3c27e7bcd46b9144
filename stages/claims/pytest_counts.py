"""A pytest plugin that writes how many tests passed, failed and were skipped to a JSON file."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

COUNTS_FILE = "KITCHEN_PYTEST_COUNTS"  # environment variable with the path of the file
_counts: Counter[str] = Counter()
_failures: list[str] = []


def pytest_runtest_logreport(report: Any) -> None:
    """Count one phase of one test: its call, and setup or teardown unless they pass."""
    if report.when == "call" or not report.passed:
        outcome = "errors" if report.failed and report.when != "call" else report.outcome
        _counts[outcome] += 1
    if report.failed:
        _failures.append(report.nodeid)


def pytest_collectreport(report: Any) -> None:
    """Count a file that cannot be imported."""
    if report.failed:
        _counts["errors"] += 1
        _failures.append(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the counts."""
    Path(os.environ[COUNTS_FILE]).write_text(json.dumps({**_counts, "failures": _failures}))

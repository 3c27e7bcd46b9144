"""The user's test suite, run by pytest in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kitchen.errors import ConfigError
from stages.claims import pytest_counts

_NO_TESTS = 5  # pytest's exit status if it collected no tests


@dataclass(frozen=True)
class SuiteResult:
    """Counts of tests by outcome, and what pytest printed."""

    passed: int
    failed: int
    skipped: int
    errors: int
    failures: tuple[str, ...]  # ids of tests that failed or could not be set up
    exit_status: int  # pytest's
    output: str

    @property
    def ok(self) -> bool:
        """True if the suite passed; one whose tests are all skipped has tested nothing."""
        return self.exit_status == 0 and self.passed > 0


def run_test_suite(path: Path, markers: str = "", args: Sequence[str] = ()) -> SuiteResult:
    """Run the tests of a file or folder, and count them.

    Each call is a new process, so that it imports the tests as they are now: a second
    `pytest.main` in one process serves modules that were imported before. Raises ConfigError for a
    path that does not exist, and if no test was collected.
    """
    if not path.exists():
        raise ConfigError(f"tests: there is no file or folder {path}")
    command = [sys.executable, "-m", "pytest", "-p", pytest_counts.__name__, str(path), *args]
    if markers:
        command += ["-m", markers]
    with tempfile.TemporaryDirectory(prefix="kitchen-") as folder:
        counts_file = Path(folder) / "counts.json"
        environ = {**os.environ, pytest_counts.COUNTS_FILE: str(counts_file)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
        counts = json.loads(counts_file.read_text()) if counts_file.exists() else {}
    output = done.stdout + done.stderr
    if done.returncode == _NO_TESTS:
        selected = f" with the markers {markers!r}" if markers else ""
        raise ConfigError(f"tests: pytest found no test in {path}{selected}")
    return SuiteResult(
        passed=counts.get("passed", 0),
        failed=counts.get("failed", 0),
        skipped=counts.get("skipped", 0),
        errors=counts.get("errors", 0),
        failures=tuple(counts.get("failures", ())),
        exit_status=done.returncode,
        output=output,
    )

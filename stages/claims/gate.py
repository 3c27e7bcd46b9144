"""Gate in front of training and evaluation: a test suite and a data schema that must hold."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import AfterValidator, PositiveInt

from kitchen.errors import ConfigError, DataError, SuiteFailed
from kitchen.ports import BlobStore, TrainingClient
from kitchen.secrets import mask, masked, secrets
from kitchen.stage import Need, Stage
from kitchen.types import Facts, Metrics, RunId, Table
from stages.claims.suite import SuiteResult, run_test_suite
from stages.claims.validation import DataProblem, DataReport, SchemaField, validate_file

log = structlog.get_logger("stages.claims")
SUITE_OUTPUT = "tests.txt"  # in the run's folder: what pytest printed
PROBLEMS = "validation.jsonl"  # in the run's folder: every problem of the data
_USAGE_ERROR = 4  # pytest's exit status for wrong arguments
_SHOWN_LINES = 60  # of pytest's output, in an error
_SHORTEST_PART = 3  # characters of a secret that may be shown
_BLOCK = 1 << 20  # bytes of problems that are written at once


def _absolute(path: str) -> str:
    if not path.strip() or "\0" in path:
        raise ValueError(f"{path!r} is no path of a file or folder")
    return os.path.abspath(os.path.expanduser(path))


# absolute, so that a run is resumed from any folder
AbsolutePath = Annotated[str, AfterValidator(_absolute)]


@dataclass(frozen=True)
class SuiteConfig:
    """A pytest suite that must pass."""

    path: AbsolutePath  # file or folder of tests
    markers: str = ""  # pytest's -m, such as "not slow"
    args: tuple[str, ...] = ()  # more arguments for pytest


@dataclass(frozen=True)
class SchemaConfig:
    """A JSONL file whose rows must follow a schema."""

    path: AbsolutePath  # JSONL file
    fields: tuple[SchemaField, ...]  # what each field must be
    max_examples: PositiveInt | None = None  # rows to validate; null for all
    shown: PositiveInt = 20  # problems that an error lists; validation.jsonl has all


@dataclass(frozen=True)
class GateConfig:
    """Conditions without which nothing is trained or evaluated."""

    tests: SuiteConfig | None = None  # test suite that must pass; null for none
    data: SchemaConfig | None = None  # data that must follow a schema; null for none
    skip: bool = False  # true to check neither; the record says so
    # settings asked for that not every backend honours; the plan and a table list those
    features: tuple[str, ...] = ()


def gate_stages(config: GateConfig, *, required: bool = False) -> list[Stage]:
    """Return the stages that check the conditions of a gate, in order.

    Raises ConfigError for a gate that checks nothing, if one is `required`.
    """
    if required and (config.skip or (config.tests is None and config.data is None)):
        raise ConfigError(
            "there is nothing to validate: set gate.tests.path to a pytest suite, or "
            "gate.data.path and gate.data.fields to a JSONL file and its schema; leave gate.skip "
            "at false"
        )
    requests = [RequestFeatures(config.features)] if config.features else []
    checks: list[Stage] = []
    if config.tests is not None:
        checks.append(RunTestSuite(config.tests))
    if config.data is not None:
        checks.append(ValidateData(config.data))
    return [*requests, *([SkipGate()] if checks and config.skip else checks)]


class RunTestSuite(Stage):
    """Run the test suite in a new process; the run goes on only if every test passes.

    The output of pytest is in `tests.txt` in the run's folder. Raises SuiteFailed, with the tests
    that failed and the end of the output.
    """

    config: SuiteConfig

    def verify(self) -> None:
        if not Path(self.config.path).exists():
            raise ConfigError(f"tests: there is no file or folder {self.config.path}")

    def run(self, blobs: BlobStore, run: RunId) -> tuple[Metrics, Table]:
        config = self.config
        result = run_test_suite(Path(config.path), config.markers, config.args)
        output = _masked_output(result.output)
        blobs.write(f"{run.id}/{SUITE_OUTPUT}", output.encode())
        end = "\n".join(output.rstrip().splitlines()[-_SHOWN_LINES:])
        if result.exit_status == _USAGE_ERROR:
            raise ConfigError(f"tests: pytest does not accept its arguments:\n{end}")
        if not result.ok:
            raise SuiteFailed(f"{_failure(config.path, result)}\n{end}")
        counts = Metrics(tests_passed=result.passed, tests_skipped=result.skipped)
        row = (config.path, str(result.passed), str(result.skipped))
        return counts, Table("Tests", ("path", "passed", "skipped"), (row,))


def _masked_output(text: str) -> str:
    """Return pytest's output without secrets, and without the parts of secrets that it cuts off."""
    shown = mask(text)
    for secret in secrets():
        for length in range(len(secret) - 1, _SHORTEST_PART, -1):
            shown = shown.replace(f"{secret[:length]}...", "***...")
            shown = shown.replace(f"...{secret[-length:]}", "...***")
    return shown


def _failure(path: str, result: SuiteResult) -> str:
    """Return the first line of the error of a suite that failed."""
    broken = result.failed + result.errors
    if not broken and result.exit_status == 0:
        return (
            f"tests: no test passed in {path}: {result.skipped} skipped, so nothing was tested; "
            "check the reasons of the skips"
        )
    if not broken:
        return f"tests: pytest ended with status {result.exit_status} in {path}"
    names = ", ".join(dict.fromkeys(result.failures))
    return f"tests: {broken} failed or could not run, {result.passed} passed in {path}: {names}"


class ValidateData(Stage):
    """Validate a JSONL file; the run goes on only if every row follows the schema.

    Every problem is a line of `validation.jsonl` in the run's folder. The file is read as a stream,
    so memory does not grow with it. Raises DataError with the first problems.
    """

    config: SchemaConfig

    def verify(self) -> None:
        for field in self.config.fields:
            _ = field.validator
        if not Path(self.config.path).is_file():
            raise DataError(f"data_validation: there is no file {self.config.path}")

    def run(self, blobs: BlobStore, run: RunId) -> tuple[Metrics, Facts, Table]:
        config = self.config
        name = f"{run.id}/{PROBLEMS}"
        with _written_in_blocks(blobs, name) as problems:
            report = validate_file(
                Path(config.path),
                config.fields,
                max_examples=config.max_examples,
                shown=config.shown,
                report=problems.add,
            )
        if report.problems:
            raise DataError(_data_errors(config.path, report, blobs.locate(name)))
        if not report.rows:
            raise DataError(f"data_validation: {config.path} has no rows")
        facts = Facts({"validated.sha256": _sha256(Path(config.path))})
        row = (config.path, f"{report.rows:,}", "0")
        table = Table("Validated data", ("file", "rows", "problems"), (row,))
        return Metrics(rows_validated=report.rows), facts, table


def _data_errors(path: str, report: DataReport, where: str) -> str:
    """Return the text of an error with the first problems of a file."""
    count = f"{report.problems:,} problem{'s' * (report.problems > 1)}"
    lines = [f"data_validation: {count} in {report.rows:,} rows of {path}"]
    lines += [f"  {problem}" for problem in report.first]
    if report.problems > len(report.first):
        lines.append(f"  and {report.problems - len(report.first):,} more")
    return "\n".join([*lines, f"all of them are in {where}"])


class _ProblemFile:
    """Problems as JSON lines, which a store that can append gets in blocks."""

    def __init__(self, blobs: BlobStore, name: str) -> None:
        self._blobs = blobs
        self._name = name
        self._lines = bytearray()
        # asked by name, because the methods of a traced adapter are dynamic
        self._append = getattr(blobs, "append", None)

    def add(self, problem: DataProblem) -> None:
        row = {"line": problem.line, "field": problem.field, "message": problem.message}
        self._lines += f"{json.dumps(masked(row), ensure_ascii=False)}\n".encode()
        if self._append is not None and len(self._lines) >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write the problems that are not written yet."""
        write = self._append or self._blobs.write
        write(self._name, bytes(self._lines))
        self._lines.clear()


@contextmanager
def _written_in_blocks(blobs: BlobStore, name: str) -> Iterator[_ProblemFile]:
    """Yield a file of problems that replaces the one of an earlier attempt."""
    blobs.delete(name)
    file = _ProblemFile(blobs, name)
    yield file
    file.flush()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class SkipGate(Stage):
    """Record that tests and data validation are skipped, and warn of it."""

    def run(self) -> Facts:
        log.warning("tests and data validation are skipped; the record of the run says so")
        return Facts({"validation": "skipped"})


class RequestFeatures(Stage):
    """Ask for features that not every backend has; the plan and a table list those it lacks."""

    features: tuple[str, ...]

    def run(self, training: TrainingClient) -> Table:
        lacking = [name for name in self.features if name not in training.capabilities]
        return Table("Not honoured", ("setting",), tuple((name,) for name in lacking))

    def needs(self) -> Iterable[Need]:
        return [Need(TrainingClient, name, required=False) for name in self.features]

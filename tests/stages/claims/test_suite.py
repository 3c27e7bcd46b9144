"""Test suites of users run in a new process, and are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kitchen.errors import ConfigError
from stages.claims.suite import run_test_suite

SUITE = """
import pytest

def test_right():
    pass

@pytest.mark.slow
def test_wrong():
    assert False

@pytest.mark.skip
def test_left_out():
    pass

def test_without_its_fixture(missing):
    pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "test_mine.py").write_text(SUITE)
    return tmp_path


def test_outcomes_are_counted(suite: Path) -> None:
    result = run_test_suite(suite)
    assert (result.passed, result.failed, result.skipped, result.errors) == (1, 1, 1, 1)
    assert [failure.split("::")[1] for failure in result.failures] == [
        "test_wrong",
        "test_without_its_fixture",
    ]
    assert not result.ok
    assert "assert False" in result.output


def test_markers_and_arguments_select_tests(suite: Path) -> None:
    result = run_test_suite(suite, "not slow", ["-k", "right"])
    assert result.ok
    assert (result.passed, result.failed) == (1, 0)


def test_a_suite_without_a_test_that_passes_is_not_ok(suite: Path) -> None:
    result = run_test_suite(suite, args=["-k", "left_out"])
    assert (result.exit_status, result.passed, result.skipped) == (0, 0, 1)
    assert not result.ok


def test_a_changed_test_gives_a_new_result(suite: Path) -> None:
    path = suite / "test_mine.py"
    path.write_text("def test_one():\n    assert False\n")
    assert run_test_suite(path).failed == 1
    path.write_text("def test_one():\n    assert True\n")
    assert run_test_suite(path).passed == 1


def test_a_file_that_cannot_be_imported_is_an_error(suite: Path) -> None:
    (suite / "test_mine.py").write_text("import nothing_of_this_name\n")
    result = run_test_suite(suite)
    assert result.errors == 1
    assert not result.ok


def test_missing_tests_are_errors(suite: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file or folder .*none"):
        run_test_suite(suite / "none")
    with pytest.raises(ConfigError, match=r"found no test in .* with the markers 'slow and x'"):
        run_test_suite(suite, "slow and x")

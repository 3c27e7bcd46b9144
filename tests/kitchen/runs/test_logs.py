"""Entries on the console."""

from __future__ import annotations

import io

import pytest
import structlog

from kitchen.runs.logs import configure


def test_loggers_write_to_the_standard_error_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar puts its own there after a logger was bound."""
    configure()
    bound, later = structlog.get_logger("one").bind(), io.StringIO()
    monkeypatch.setattr("sys.stderr", later)
    bound.warning("slow", seconds=3)
    assert "slow" in later.getvalue()
    assert "seconds=3" in later.getvalue()


def test_loggers_wait_for_each_other() -> None:
    configure()
    one, other = (structlog.get_logger(name).bind()._logger for name in ("one", "other"))
    assert one._lock is other._lock

"""Executors of sweeps obey their laws."""

from __future__ import annotations

import pytest

from kitchen.experiments.executors import CommandTemplate, LocalProcesses
from kitchen.testing.executors import ExecutorLaws


class TestLocalProcesses(ExecutorLaws):
    def executor(self) -> LocalProcesses:
        return LocalProcesses()


class TestCommandOfWords(ExecutorLaws):
    def executor(self) -> CommandTemplate:
        return CommandTemplate("env -u UNSET {command}")


class TestQuotedCommand(ExecutorLaws):
    def executor(self) -> CommandTemplate:
        return CommandTemplate("sh -c 'exec {command}'")


def test_laws_need_an_executor() -> None:
    with pytest.raises(NotImplementedError, match="must say which executor"):
        ExecutorLaws().executor()

"""Stages: contracts read from signatures, roles, and the text that people see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from kitchen import Metrics, Progress, Result, Stage
from kitchen.errors import RunFailed
from kitchen.ports import Done, Future
from kitchen.stage import check_result, contract_of
from kitchen.types import Table


@dataclass(frozen=True)
class Batch(Result):
    size: int = 0


@dataclass(frozen=True)
class Output(Result):
    value: float = 0.0


class Critic(Output):
    """Another type in the role of Output."""


@dataclass(frozen=True)
class Limits:
    tokens: int = 256
    words: tuple[str, ...] = ()


class Train(Stage):
    rate: float = 0.1
    options: dict[str, float] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    def run(
        self, batch: Batch, output: Future[Output], hint: str | None = None
    ) -> tuple[Future[Output], Metrics]:
        return Done(Output()), Metrics()


class Batches(Stage):
    def run(self) -> Iterable[Batch]:
        return [Batch()]


class Half(Stage):
    def run(self, progress: Progress) -> bool:
        return progress.step % 2 == 0


class MaybeBatch(Stage):
    def run(self) -> tuple[Batch | None, Output]:
        return None, Output()


class Report(Stage):
    def run(self) -> Metrics:
        return Metrics()


class Print(Stage):
    def run(self) -> None:
        return None


class Untyped(Stage):
    def run(self, output):  # type: ignore[no-untyped-def]
        return output


def test_contract_is_read_from_the_signature() -> None:
    contract = Train().contract()
    assert [(r.name, r.kind, r.pending, r.optional) for r in contract.reads] == [
        ("batch", Batch, False, False),
        ("output", Output, True, False),
        ("hint", str, False, True),
    ]
    assert contract.returns == (Output, Metrics)
    assert contract.writes == (Output,)
    assert contract.pending == {Output}
    assert contract.rewrites(Output)
    assert not contract.rewrites(Batch)


def test_contract_of_sources_and_conditions() -> None:
    assert (Batches().contract().yields, Batches().contract().returns) == (Batch, ())
    assert Half().contract().is_condition
    assert not Train().contract().is_condition


def test_parameter_without_a_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Untyped.run: 'output' has no type annotation"):
        contract_of(Untyped)


def test_roles_replace_types_in_the_contract() -> None:
    stage = Train().using({Output: Critic})
    assert [read.kind for read in stage.contract().reads] == [Batch, Critic, str]
    assert stage.contract().pending == {Critic}
    assert (stage.role(Output), stage.role(Batch)) == (Critic, Batch)
    assert stage.without_roles() == Train()
    assert (stage.title(), str(stage)) == ("Train", "Train()")


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (Train(), "Train()"),
        (Train(options={}), "Train()"),
        (Train(0.2, {"clip": 0.2}), "Train(rate=0.2, options={'clip': 0.2})"),
        (Train(limits=Limits(tokens=8)), "Train(limits=Limits(tokens=8))"),
    ],
)
def test_text_shows_changed_options_only(stage: Stage, text: str) -> None:
    assert str(stage) == text


def test_long_options_are_shortened() -> None:
    words = tuple(f"word{n}" for n in range(20))
    assert str(Train(limits=Limits(words=words))).endswith("...))")


@pytest.mark.parametrize(
    "stage, result, text",
    [
        (Report(), None, "Metrics.* and returned None"),
        (Report(), {"loss": 1.0}, "Metrics.* and returned a value of type dict"),
        (Print(), Metrics(), "None and returned a value of type Metrics"),
        (Half(), None, "bool.* and returned None"),
        (Batches(), None, "Iterable.* and returned None"),
        (Train(), (Output(), Metrics()), r"returned \(a value of type Output, .*Metrics\)"),
        (Train(), (Done(Output()), None), r"returned \(a value of type Done, None\)"),
        (Train(), Done(Output()), "returned a value of type Done"),
        (MaybeBatch(), (None, None), r"returned \(None, None\)"),
        (Report().using({Output: Critic}), None, "Report.run .* returned None"),
    ],
)
def test_result_that_was_not_promised_is_an_error(stage: Stage, result: object, text: str) -> None:
    with pytest.raises(RunFailed, match=text) as error:
        check_result(stage.without_roles(), result)
    assert "test_stage.py:" in str(error.value)


@pytest.mark.parametrize(
    "stage, result",
    [
        (Report(), Metrics()),
        (Print(), None),
        (Half(), False),
        (Batches(), iter([])),
        (Train(), (Done(Output()), Metrics())),
        (MaybeBatch(), (None, Output())),
        (MaybeBatch(), (Batch(), Critic())),
    ],
)
def test_result_that_was_promised_is_returned(stage: Stage, result: object) -> None:
    assert check_result(stage, result) is result


@pytest.mark.parametrize("value", [None, "0.5", [0.5], object()])
def test_metric_that_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(RunFailed, match=r"Report.run .*test_stage.py:\d+.* the metric loss="):
        check_result(Report(), Metrics(accuracy=1.0, loss=value))


class Tabulate(Stage):
    def run(self) -> Table:
        return Table("Scores", ("name", "score"), ())


@pytest.mark.parametrize("row", [("a",), ("a", "1", "2"), ("a", 1), ("a", None), (), "ab1"])
def test_row_that_does_not_fit_its_table_is_named(row: Any) -> None:
    table = Table("Scores", ("name", "score"), (("b", "2"), row))
    with pytest.raises(RunFailed, match=r"Tabulate.run .*test_stage.py:\d+.* table 'Scores'"):
        check_result(Tabulate(), table)


@pytest.mark.parametrize("value", [1, 0.5, True, float("nan"), np.float32(0.5), np.int64(2)])
def test_numbers_are_metrics(value: Any) -> None:
    assert check_result(Report(), Metrics(loss=value))

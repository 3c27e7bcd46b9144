"""What stages can show before a run: each that finds what it reads, in loops and conditions too,
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from kitchen import Batch, Stage, Table, every, for_each, parallel, sequence
from kitchen.engine.preview import preview


class Flour(Stage):
    """It can be weighed before it is used."""

    grams: int

    def run(self) -> int:
        return self.grams

    preview = run


class Rounds(Stage):
    """Nothing to preview."""

    def run(self) -> Iterable[Batch]:
        return [Batch(())] * 3


class Bread(Stage):
    """Of flour."""

    def run(self, flour: int) -> float:
        return flour * 1.5

    def preview(self, flour: int, salt: str | None = None) -> tuple[float, Table]:
        return flour * 1.5, Table("Bread", ("grams",), ((f"{flour * 1.5:g}{salt or ''}",),))


class Cake(Stage):
    """It needs what no preview leaves."""

    def run(self, butter: bytes) -> None: ...

    def preview(self, butter: bytes) -> Table:
        raise AssertionError("there is no butter")


def shown(step: Any, ports: dict[Any, Any] | None = None) -> list[str]:
    return [table.rows[0][0] for table in preview(step, ports or {})]


def test_stages_in_a_loop_are_asked_once_with_what_is_there_before_it() -> None:
    inner = for_each(Rounds())(Bread(), Cake())
    assert shown(sequence(Flour(100), for_each(Rounds())(inner, every(2)(Bread())))) == [
        "150",
        "150",
    ]
    assert shown(sequence(Flour(100), parallel(Bread(), Cake()))) == ["150"]


def test_what_nobody_leaves_is_not_asked_for() -> None:
    assert shown(sequence(Bread(), Flour(10), Cake())) == []


def test_what_is_given_counts_and_roles_are_what_they_are_in_the_run() -> None:
    role = {int: Sized}
    assert shown(sequence(Flour(2).using(role), Bread().using(role)), {str: " salted"}) == [
        "3 salted"
    ]
    assert shown(sequence(Flour(2).using(role), Bread())) == []

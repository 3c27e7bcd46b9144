"""Previews: each stage whose inputs exist is previewed once, in loops and conditions too."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from kitchen import Batch, Stage, Table, every, for_each, parallel, sequence
from kitchen.engine.preview import preview


class Flour(Stage):
    """Its preview writes what a run writes."""

    grams: int

    def run(self) -> int:
        return self.grams

    preview = run


class Rounds(Stage):
    """Has no preview."""

    def run(self) -> Iterable[Batch]:
        return [Batch(())] * 3


class Bread(Stage):
    """Its preview reads what the preview of Flour writes."""

    def run(self, flour: int) -> float:
        return flour * 1.5

    def preview(self, flour: int, salt: str | None = None) -> tuple[float, Table]:
        return flour * 1.5, Table("Bread", ("grams",), ((f"{flour * 1.5:g}{salt or ''}",),))


class Cake(Stage):
    """Its preview reads a type that no preview writes."""

    def run(self, butter: bytes) -> None: ...

    def preview(self, butter: bytes) -> Table:
        raise AssertionError("there is no butter")


def previews(step: Any, ports: dict[Any, Any] | None = None) -> list[str]:
    return [table.rows[0][0] for table in preview(step, ports or {})]


def test_stages_in_loops_are_previewed_once() -> None:
    inner = for_each(Rounds())(Bread(), Cake())
    assert previews(sequence(Flour(100), for_each(Rounds())(inner, every(2)(Bread())))) == [
        "150",
        "150",
    ]
    assert previews(sequence(Flour(100), parallel(Bread(), Cake()))) == ["150"]


def test_stages_without_their_inputs_are_skipped() -> None:
    assert previews(sequence(Bread(), Flour(10), Cake())) == []


def test_ports_and_roles_apply_as_in_a_run() -> None:
    role = {int: Sized}
    assert previews(sequence(Flour(2).using(role), Bread().using(role)), {str: " salted"}) == [
        "3 salted"
    ]
    assert previews(sequence(Flour(2).using(role), Bread())) == []

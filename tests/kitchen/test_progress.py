"""Progress of nested loops, and locations within them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kitchen.progress import NOWHERE, Location, LoopStep, Progress, shares_of


@dataclass(frozen=True)
class Phase:
    share: float


def test_items_share_a_loop_equally() -> None:
    shares = shares_of([1, 2, 3, 4], int)
    assert shares is not None
    assert [shares(index) for index in range(4)] == [(n / 4, 0.25) for n in range(4)]


def test_items_may_define_their_share() -> None:
    shares = shares_of([Phase(0.75), Phase(0.25)], Phase)
    assert shares is not None
    assert [shares(0), shares(1)] == [(0.0, 0.75), (0.75, 0.25)]


def test_unknown_length_has_no_share_and_no_total() -> None:
    assert shares_of(iter([1]), int) is None
    progress = Progress().within(3, 3, None)
    assert (progress.step, progress.done, progress.total) == (3, None, None)


def test_inner_progress_is_a_share_of_the_outermost_loop() -> None:
    halves, quarters = shares_of([0] * 2, int), shares_of([0] * 4, int)
    inner = Progress().within(1, 1, halves).within(6, 2, quarters)
    assert inner == Progress(step=6, done=0.75, width=0.125)
    assert inner.total == 8


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (NOWHERE, ""),
        (NOWHERE.recipe("recipes.mine"), "recipes.mine"),
        (NOWHERE.recipe("recipes.mine").recipe(""), "recipes.mine"),
        (
            NOWHERE.recipe("recipes.mine").iteration("Batches", Progress(3, 0.75, 0.25)),
            "recipes.mine > Batches step 3",
        ),
    ],
)
def test_location_reads_outermost_first(location: Location, text: str) -> None:
    assert str(location) == text


def test_location_knows_loop_total_and_epoch() -> None:
    epoch = NOWHERE.recipe("recipes.mine").iteration("Epochs", Progress(1, 0.5, 0.5))
    batch = epoch.recipe("Inner").iteration("Batches", Progress(6, 0.75, 0.125))
    assert batch.loops == (LoopStep("Epochs", 1, 2, None), LoopStep("Batches", 6, 8, 1))

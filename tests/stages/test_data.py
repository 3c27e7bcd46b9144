"""Rows that are kept back, and rows that are trained on."""

from __future__ import annotations

import time

from adapters.fake.datasets import FakeDatasets
from stages.data import LoadDataset


def rows(count: int) -> FakeDatasets:
    return FakeDatasets({"many": {"train": [{"prompt": str(row), "completion": "x"} for row in range(count)]}})


def seconds(count: int) -> float:
    """Of processor time to tell the rows apart, and to read half of them."""
    store, stage = rows(count), LoadDataset("many", limit=1, held_out=0.5)
    started = time.process_time()
    stage.run(store)
    return time.process_time() - started


def test_every_row_is_either_trained_on_or_held_out() -> None:
    trained, held, _ = LoadDataset("many", held_out=0.5).run(rows(20))
    seen = [each.messages[0].content for each in (*trained.conversations, *held.sets["held_out"])]
    assert sorted(seen, key=int) == [str(row) for row in range(20)]
    assert len(trained.conversations) == 10


def test_the_time_to_keep_rows_back_grows_with_their_number_and_not_its_square() -> None:
    few, many = (min(seconds(count) for _ in range(3)) for count in (1_000, 8_000))
    assert many < 25 * few  # the square would be 64 times

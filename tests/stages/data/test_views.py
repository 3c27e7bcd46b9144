"""Views of a data set: rows, order, column names and fingerprints."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from adapters.fake.datasets import FakeDatasets
from kitchen.errors import ConfigError, DataError
from kitchen.ports.datasets import Dataset
from stages.data.views import batches, rename, rename_row, select, shuffle, skip, split, take


def numbers(rows: int) -> Dataset:
    return FakeDatasets(
        {"numbers": {"train": [{"n": row, "half": row / 2} for row in range(rows)]}}
    ).load("numbers")


def shown(data: Dataset) -> list[int]:
    return [data[index]["n"] for index in range(len(data))]


def test_views_show_the_rows_they_name() -> None:
    data = numbers(10)
    assert shown(select(data, [7, 0, 7])) == [7, 0, 7]
    assert shown(select(data, np.array([9, 3], np.uint8))) == [9, 3]
    assert shown(select(data, range(8, 2, -3))) == [8, 5]
    assert shown(select(data, [])) == []
    assert (shown(take(data, 3)), shown(skip(data, 7))) == ([0, 1, 2], [7, 8, 9])
    assert (shown(take(data, 30)), shown(skip(data, 30))) == (list(range(10)), [])
    assert shown(take(skip(shuffle(data, 4), 2), 3)) == shown(shuffle(data, 4))[2:5]


def test_view_keeps_the_place_of_a_row() -> None:
    view = skip(select(numbers(10), [4, 8, 2]), 1)
    assert [view.where(index) for index in range(2)] == [
        "fake:numbers:train:8",
        "fake:numbers:train:2",
    ]
    assert rename(view, {"n": "number"}).where(0) == "fake:numbers:train:8"


def test_shuffle_depends_on_the_seed() -> None:
    data = numbers(1000)
    assert sorted(shown(shuffle(data, 1))) == list(range(1000))
    assert (
        shown(shuffle(data, 1))
        == shown(shuffle(data, 1))
        == np.random.default_rng(1).permutation(1000).tolist()
    )
    assert shown(shuffle(data, 1)) != shown(shuffle(data, 2))


def test_a_split_has_every_row_once() -> None:
    data = numbers(103)
    rest, held = split(data, 0.1, seed=3)
    assert len(held) == 10
    assert sorted(shown(rest) + shown(held)) == list(range(103))
    assert shown(rest) == sorted(shown(rest))
    assert shown(held) == sorted(np.random.default_rng(3).permutation(103)[:10].tolist())
    assert shown(split(data, 0.1, seed=4)[1]) != shown(held)


@pytest.mark.parametrize(
    "rows, share", [(10, 0.0), (10, 1.0), (10, 0.01), (1, 0.5), (0, 0.5), (10, 1.5), (10, -0.1)]
)
def test_no_part_of_a_split_is_empty(rows: int, share: float) -> None:
    with pytest.raises(DataError, match=f"a share of {share} of {rows} rows"):
        split(numbers(rows), share, seed=0)


def test_batches_hold_consecutive_rows() -> None:
    assert [[row["n"] for row in batch] for batch in batches(numbers(5), 2)] == [
        [0, 1],
        [2, 3],
        [4],
    ]
    assert list(batches(numbers(0), 2)) == []
    with pytest.raises(ConfigError, match="batches of 0 rows"):
        batches(numbers(5), 0)


@pytest.mark.parametrize("wrong", [[0, 10], [-1], np.array([3, 11])])
def test_rows_out_of_range_are_refused(wrong: list[int]) -> None:
    with pytest.raises(IndexError, match="of 10"):
        select(numbers(10), wrong)


@pytest.mark.parametrize(
    "view", [take(numbers(10), 5), shuffle(numbers(5), 0), split(numbers(10), 0.5, 0)[0]]
)
def test_indices_past_the_ends_raise(view: Dataset) -> None:
    for index in (-1, 5, -5):
        with pytest.raises(IndexError):
            view[index]
        with pytest.raises(IndexError):
            view.where(index)


def test_negative_counts_are_refused() -> None:
    for cut in (take, skip):
        with pytest.raises(ConfigError, match=f"{cut.__name__} -1 rows"):
            cut(numbers(3), -1)


def test_columns_are_renamed() -> None:
    data = rename(numbers(3), {"n": "half", "half": "n"})
    assert [data[1], len(data)] == [{"half": 1, "n": 0.5}, 3]
    assert rename_row({"question": "?", "id": 1}, {"question": "prompt"}, "here") == {
        "prompt": "?",
        "id": 1,
    }


def test_unknown_column_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"train:0: there is no column 'hafl' to rename; did you mean 'half'"
    ):
        rename(numbers(3), {"hafl": "prompt"})
    ragged = FakeDatasets({"ragged": {"train": [{"question": "a"}, {"answer": "b"}]}}).load(
        "ragged"
    )
    with pytest.raises(DataError, match=r"fake:ragged:train:1: there is no column 'question'"):
        rename(ragged, {"question": "prompt"})[1]


def test_duplicate_column_name_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"fake:numbers:train:0: two columns would be called 'half'"
    ):
        rename(numbers(3), {"n": "half"})
    with pytest.raises(DataError, match=r"here: two columns would be called 'c'"):
        rename_row({"a": 1, "b": 2}, {"a": "c", "b": "c"}, "here")


def test_fingerprint_identifies_the_view() -> None:
    data = numbers(10)
    views = [
        data,
        numbers(11),
        take(data, 5),
        take(data, 6),
        skip(data, 5),
        shuffle(data, 1),
        shuffle(data, 2),
        *split(data, 0.5, 1),
        *split(data, 0.5, 2),
        rename(data, {"n": "a"}),
        rename(data, {"half": "a"}),
    ]
    assert len({view.fingerprint for view in views}) == len(views)
    assert all(len(view.fingerprint) == 64 for view in views)
    assert shuffle(numbers(10), 1).fingerprint == shuffle(data, 1).fingerprint
    assert (
        select(data, range(5)).fingerprint
        == select(data, [0, 1, 2, 3, 4]).fingerprint
        == take(data, 5).fingerprint
    )


def test_row_indices_are_compact() -> None:
    class Million:
        fingerprint = "0" * 64

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int, /) -> dict[str, int]:
            return {"n": index}

        def where(self, index: int) -> str:
            return f"row {index}"

    rest, held = split(Million(), 0.1, seed=0)
    for view in (shuffle(Million(), 0), rest, held):
        assert view.indices.nbytes <= 4_000_000  # type: ignore[attr-defined]
    assert sys.getsizeof(take(Million(), 900_000).indices) < 100  # type: ignore[attr-defined]
    assert len(shuffle(Million(), 0).fingerprint) == 64


@pytest.mark.parametrize("chosen", [[True, False], [0.5, 1.0], np.array([True, True])])
def test_rows_are_selected_by_whole_numbers(chosen: Any) -> None:
    with pytest.raises(TypeError, match="rows are selected by index"):
        select(numbers(2), chosen)

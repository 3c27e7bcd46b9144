"""The laws of data set stores: subclass `DatasetLaws`, define `store`, and run pytest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kitchen.errors import DataError
from kitchen.ports.datasets import Dataset, DatasetStore, Row

Data = Mapping[str, Mapping[str, Sequence[Row]]]  # name, split, rows
ROWS: Sequence[Row] = [
    {"prompt": f"{number} cups of crème fraîche", "completion": f'{{"quantity": {number}}}'}
    for number in range(7)
]
DATA: Data = {
    "creams": {"train": ROWS[:5], "held_out": ROWS[5:]},
    "chat": {
        "train": [
            {
                "messages": [
                    {"role": "user", "content": "eggs?"},
                    {"role": "assistant", "content": "Two."},
                ]
            }
        ]
    },
}


class DatasetLaws:
    """Rows have a fixed order, a digest of their content, and a place that people can find."""

    def store(self, tmp_path: Path, data: Data) -> DatasetStore:
        """Return the adapter under test, filled with `data`: rows by name and split."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which adapter the laws are for, and fill it:\n"
            "    def store(self, tmp_path: Path, data: Data) -> DatasetStore:\n"
            "        return MyDatasets(...)  # one that has each name of `data`, with those splits "
            "and rows"
        )

    def named(self, tmp_path: Path, name: str) -> str:
        """Return the store's name of a data set; override it where names are paths."""
        return name

    def loaded(
        self, tmp_path: Path, data: Data = DATA, name: str = "creams", split: str = "train"
    ) -> Dataset:
        tmp_path.mkdir(exist_ok=True)
        return self.store(tmp_path, data).load(self.named(tmp_path, name), split=split)

    def test_rows_keep_their_order(self, tmp_path: Path) -> None:
        dataset = self.loaded(tmp_path)
        assert [dict(dataset[index]) for index in range(len(dataset))] == ROWS[:5]
        assert [dict(dataset[index]) for index in (3, 0, 3)] == [ROWS[3], ROWS[0], ROWS[3]]

    def test_nested_rows_come_back_whole(self, tmp_path: Path) -> None:
        row = self.loaded(tmp_path, name="chat")[0]
        messages = [dict(message) for message in row["messages"]]
        assert messages == DATA["chat"]["train"][0]["messages"]

    def test_splits_are_separate_and_train_comes_first(self, tmp_path: Path) -> None:
        store = self.store(tmp_path, DATA)
        name = self.named(tmp_path, "creams")
        assert list(store.splits(name)) == ["train", "held_out"]
        assert [len(store.load(name, split=split)) for split in store.splits(name)] == [5, 2]
        assert dict(store.load(name, split="held_out")[0]) == ROWS[5]
        assert len(store.load(name)) == 5

    @pytest.mark.parametrize("index", [5, 100, -1, -6])
    def test_an_index_out_of_range_is_an_error(self, tmp_path: Path, index: int) -> None:
        dataset = self.loaded(tmp_path)
        with pytest.raises(IndexError):
            dataset[index]

    def test_the_fingerprint_is_a_digest_of_the_content(self, tmp_path: Path) -> None:
        first = self.loaded(tmp_path / "1")
        second = self.loaded(tmp_path / "2")
        assert len(first.fingerprint) == 64
        assert int(first.fingerprint, 16) >= 0
        assert second.fingerprint == first.fingerprint == first.fingerprint

    @pytest.mark.parametrize("change", ["a word", "the order", "one fewer"])
    def test_the_fingerprint_changes_with_the_content(self, tmp_path: Path, change: str) -> None:
        rows = {
            "a word": [{**ROWS[0], "prompt": "other"}, *ROWS[1:5]],
            "the order": ROWS[4::-1],
            "one fewer": ROWS[:4],
        }
        data = {**DATA, "creams": {**DATA["creams"], "train": rows[change]}}
        assert (
            self.loaded(tmp_path / "1").fingerprint != self.loaded(tmp_path / "2", data).fingerprint
        )

    @pytest.mark.parametrize("split", ["train", "held_out"])
    def test_a_stream_has_the_same_rows_and_places(self, tmp_path: Path, split: str) -> None:
        store, name = self.store(tmp_path, DATA), self.named(tmp_path, "creams")
        data = store.load(name, split=split)
        streamed = list(store.stream(name, split=split))
        indices = range(len(data))
        assert [dict(entry.row) for entry in streamed] == [dict(data[index]) for index in indices]
        assert [entry.where for entry in streamed] == [data.where(index) for index in indices]

    def test_no_good_row_is_left_out_with_the_bad_ones(self, tmp_path: Path) -> None:
        store, name = self.store(tmp_path, DATA), self.named(tmp_path, "creams")
        bad: list[DataError] = []
        data = store.load(name, on_bad_row=bad.append)
        streamed = list(store.stream(name, on_bad_row=bad.append))
        assert [dict(data[index]) for index in range(len(data))] == ROWS[:5]
        assert [dict(entry.row) for entry in streamed] == ROWS[:5]
        assert not bad

    def test_streams_are_independent(self, tmp_path: Path) -> None:
        store, name = self.store(tmp_path, DATA), self.named(tmp_path, "creams")
        first, second = store.stream(name), store.stream(name)
        entries = [next(first), next(first), next(second), next(first)]
        assert [dict(entry.row) for entry in entries] == [ROWS[0], ROWS[1], ROWS[0], ROWS[2]]
        assert len(list(first)) == 2
        assert len(list(first)) == 0, "a stream that has ended should stay ended"

    def test_info_matches_the_rows(self, tmp_path: Path) -> None:
        store, name = self.store(tmp_path, DATA), self.named(tmp_path, "creams")
        info = store.info(name)
        assert info.name == name
        assert list(info.splits) == list(store.splits(name))
        for split, rows in info.splits.items():
            assert rows in (None, len(store.load(name, split=split))), (
                "None is the answer where it is not known"
            )

    def test_a_revision_can_be_loaded_again(self, tmp_path: Path) -> None:
        """A store with one version only has the revision None."""
        store, name = self.store(tmp_path, DATA), self.named(tmp_path, "creams")
        revision = store.info(name).revision
        assert store.info(name, revision=revision).revision == revision
        assert list(store.splits(name, revision=revision)) == ["train", "held_out"]
        assert store.load(name, revision=revision).fingerprint == store.load(name).fingerprint
        assert dict(next(store.stream(name, revision=revision)).row) == ROWS[0]

    def test_an_unknown_name_is_an_error_with_a_suggestion(self, tmp_path: Path) -> None:
        store, name = self.store(tmp_path, DATA), self.named(tmp_path, "creams")
        misspelt = name.replace("creams", "craems")
        for method in (store.splits, store.info, store.load, store.stream):
            with pytest.raises(DataError, match="craems") as refused:
                method(misspelt)
            assert "creams" in str(refused.value), "the message should suggest the nearest name"

    def test_an_unknown_split_is_an_error_with_a_suggestion(self, tmp_path: Path) -> None:
        store, name = self.store(tmp_path, DATA), self.named(tmp_path, "creams")
        for method in (store.load, store.stream):
            with pytest.raises(DataError, match="held_uot") as refused:
                method(name, split="held_uot")
            assert "held_out" in str(refused.value)

    def test_an_unknown_revision_is_an_error(self, tmp_path: Path) -> None:
        store, name = self.store(tmp_path, DATA), self.named(tmp_path, "creams")
        for method in (store.splits, store.info, store.load, store.stream):
            with pytest.raises(DataError, match="no-such-revision"):
                method(name, revision="no-such-revision")

    def test_it_locates_each_row_for_people(self, tmp_path: Path) -> None:
        dataset = self.loaded(tmp_path)
        places = [dataset.where(index) for index in range(len(dataset))]
        assert len(set(places)) == len(places)
        assert all("creams" in place for place in places)

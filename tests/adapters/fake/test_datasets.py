"""The built-in rows of the fake data sets."""

from __future__ import annotations

import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from kitchen.errors import DataError


def test_the_built_in_data_sets_are_enough_for_a_demonstration() -> None:
    store = FakeDatasets()
    for name in ("greetings", "sums"):
        assert list(store.splits(name)) == ["train", "held_out"]
        train, held_out = store.load(name), store.load(name, split="held_out")
        assert len(train) >= 50
        assert len(held_out) >= 8
        rows = [str(train[index]) for index in range(len(train))]
        assert len(set(rows)) == len(rows)
        assert not set(rows) & {str(held_out[index]) for index in range(len(held_out))}
        assert train.fingerprint == FakeDatasets().load(name).fingerprint


def test_greetings_are_conversations() -> None:
    greetings = FakeDatasets().load("greetings")
    for index in range(len(greetings)):
        messages = greetings[index]["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant"]
        assert len(ByteTokenizer().render(messages)) > 20


def test_places_say_data_set_split_and_row() -> None:
    assert (
        FakeDatasets({"mine": {"test": [{"a": 1}]}}).load("mine", split="test").where(0)
        == "fake:mine:test:0"
    )


def test_there_are_no_revisions() -> None:
    with pytest.raises(DataError, match=r"'greetings' has no revision 'main'.*leave revision out"):
        FakeDatasets().load("greetings", revision="main")


def test_what_is_in_memory_is_known_beforehand() -> None:
    info = FakeDatasets({"mine": {"test": [{"a": 1}], "train": [{"a": 2}, {"a": 3}]}}).info("mine")
    assert list(info.splits.items()) == [("train", 2), ("test", 1)]
    assert (info.revision, info.size) == (None, None)

"""Data sets in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from kitchen.errors import DataError, did_you_mean
from kitchen.ports.datasets import Dataset, DatasetInfo, OnBadRow, Row, StreamedRow

Splits = Mapping[str, Sequence[Row]]


class FakeDatasets:
    """Data sets by name, as {name: {split: rows}}; by default two small ones for examples."""

    def __init__(self, data: Mapping[str, Splits] | None = None) -> None:
        self._data = _built_in() if data is None else data

    def splits(self, name: str, *, revision: str | None = None) -> Sequence[str]:
        return sorted(self._splits_of(name, revision), key=lambda split: (split != "train", split))

    def info(self, name: str, *, revision: str | None = None) -> DatasetInfo:
        splits = self.splits(name, revision=revision)
        return DatasetInfo(
            name, {split: len(self._data[name][split]) for split in splits}, about="Rows in memory."
        )

    def load(
        self,
        name: str,
        *,
        split: str = "train",
        revision: str | None = None,
        on_bad_row: OnBadRow | None = None,
    ) -> Dataset:
        splits = self._splits_of(name, revision)
        if split not in splits:
            raise DataError(
                f"data set {name!r} has no split {split!r}; {did_you_mean(split, splits)}"
            )
        return FakeDataset(f"{name}:{split}", splits[split])

    def stream(
        self,
        name: str,
        *,
        split: str = "train",
        revision: str | None = None,
        on_bad_row: OnBadRow | None = None,
    ) -> Iterator[StreamedRow]:
        data = self.load(name, split=split, revision=revision)
        return (StreamedRow(data.where(index), data[index]) for index in range(len(data)))

    def _splits_of(self, name: str, revision: str | None) -> Splits:
        if name not in self._data:
            raise DataError(
                f"data set {name!r} is unknown to the fake data sets; "
                f"{did_you_mean(name, self._data)}"
            )
        if revision is not None:
            raise DataError(
                f"data set {name!r} has no revision {revision!r}: data in memory has none; "
                "leave revision out"
            )
        return self._data[name]


class FakeDataset:
    """Rows in a fixed order."""

    def __init__(self, name: str, rows: Sequence[Row]) -> None:
        self._name, self._rows = name, tuple(rows)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the rows as JSON, in hex."""
        return hashlib.sha256(json.dumps(self._rows, sort_keys=True).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Row:
        """Return a row; raises IndexError for an index out of range."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of the {len(self)} in {self._name}")
        return self._rows[index]

    def where(self, index: int) -> str:
        return f"fake:{self._name}:{index}"


def _built_in() -> Mapping[str, Splits]:
    """Return one data set of messages, and one of prompts with completions."""
    people = (
        "Ada",
        "Alan",
        "Barbara",
        "Claude",
        "Donald",
        "Edsger",
        "Frances",
        "Grace",
        "John",
        "Katherine",
    )
    salutations = (
        "Good morning",
        "Good afternoon",
        "Good evening",
        "Good night",
        "Hello",
        "Hi",
        "Welcome",
    )
    greetings = [
        _chat(f"Greet {person}: {salutation.lower()}.", f"{salutation}, {person}!")
        for person, salutation in product(people, salutations)
    ]
    sums: list[Row] = [
        {"prompt": f"{a} + {b} =", "completion": f"{a + b}"}
        for a, b in product(range(1, 11), repeat=2)
    ]
    return {"greetings": _train_and_held_out(greetings), "sums": _train_and_held_out(sums)}


def _chat(question: str, answer: str) -> Row:
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }


def _train_and_held_out(rows: Sequence[Row]) -> Splits:
    """Split rows in two; every seventh row is held out."""
    train = [row for index, row in enumerate(rows) if index % 7 != 3]
    return {"train": train, "held_out": rows[3::7]}

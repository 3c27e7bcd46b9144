"""JSON lines: one row a line, without secrets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen.errors import RunFailed
from kitchen.runs.jsonl import Journal
from kitchen.runs.store import read_journal


def test_unicode_line_separators_stay_on_one_line() -> None:
    blobs, odd = FakeBlobs(), {"n": 0, "text": "one\u2028two\x85three\x0bfour"}
    for number in range(3):  # like processes, each of which reads what the last one wrote
        journal = Journal(blobs, "soup/samples.jsonl")
        journal.put(number, [{**odd, "n": number}])
        journal.flush()
    assert read_journal(blobs, "soup", "samples") == [{**odd, "n": number} for number in range(3)]


@pytest.mark.parametrize(
    ("row", "written"),
    [
        ({"n": 0, "text": 'a "quoted\\secret" here'}, {"n": 0, "text": "a *** here"}),
        ({"n": 0, "deep": [{"text": "tab\tbed secret"}]}, {"n": 0, "deep": [{"text": "***"}]}),
        ({"n": 0, "at": "https://me:pass@kitchen"}, {"n": 0, "at": "https://***@kitchen"}),
        (
            {"n": 0, "of": MappingProxyType({"text": "tab\tbed secret"})},
            {"n": 0, "of": {"text": "***"}},
        ),
        ({"n": 0, "error": ValueError("no crème secrète")}, {"n": 0, "error": "no ***"}),
        ({"n": 0, "text": "crème secrète"}, {"n": 0, "text": "***"}),
        (
            {"n": 0, "of": MappingProxyType({"text": "nothing"})},
            {"n": 0, "of": {"text": "nothing"}},
        ),
    ],
)
def test_secrets_that_json_escapes_are_masked(
    row: dict[str, Any], written: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOUP_API_KEY", '"quoted\\secret"')
    monkeypatch.setenv("FLAN_API_KEY", "crème secrète")
    monkeypatch.setenv("STEW_API_KEY", "tab\tbed secret")
    blobs = FakeBlobs()
    journal = Journal(blobs, "soup/samples.jsonl")
    journal.put(0, [row])
    journal.flush()
    assert read_journal(blobs, "soup", "samples") == [written]


class Counting(FakeBlobs):
    """Counts the bytes that are written."""

    written = 0

    def write(self, name: str, data: bytes) -> None:
        self.written += len(data)
        super().write(name, data)


class Appending(Counting):
    def append(self, name: str, data: bytes) -> None:
        content = (self.read(name) or b"") + data
        self.written += len(data) - len(content)
        self.write(name, content)


@pytest.mark.parametrize("store", [Counting, Appending])
def test_bytes_written_are_proportional_to_rows(store: type[Counting]) -> None:
    blobs = store()
    journal = Journal(blobs, "soup/metrics.jsonl")
    rows = [{"n": number, "text": "x" * 1000} for number in range(3000)]
    for row in rows:
        journal.put(row["n"], [row])
        if row["n"] % 100 == 99:
            journal.flush()
    journal.flush()
    assert read_journal(blobs, "soup", "metrics") == rows
    assert blobs.written <= 3 * sum(len(blobs.read(name) or b"") for name in blobs.list())


@pytest.mark.parametrize("store", [FakeBlobs, Appending])
@pytest.mark.parametrize("first_dropped", [0, 1, 700, 1500, 2999, 3000])
def test_rows_from_a_number_on_are_dropped(store: type[FakeBlobs], first_dropped: int) -> None:
    blobs = store()
    rows = [{"n": number, "text": "x" * 300} for number in range(3000)]
    earlier = Journal(blobs, "soup/metrics.jsonl")
    for row in rows:
        earlier.put(row["n"], [row])
        if row["n"] % 500 == 0:
            earlier.flush()
    earlier.flush()
    states: list[Any] = []
    journal = Journal(
        blobs, "soup/metrics.jsonl", before_drop=lambda: states.append(journal.state())
    )
    assert journal.begins_with(earlier.state())
    new = {"n": first_dropped, "text": "new"}
    journal.put(first_dropped, [new])
    journal.flush()
    assert read_journal(blobs, "soup", "metrics") == [*rows[:first_dropped], new]
    assert [state["rows"] for state in states] == [first_dropped] * (first_dropped < 3000)
    assert all(journal.begins_with(state) for state in states)
    again = Journal(blobs, "soup/metrics.jsonl")
    assert again.state() == journal.state()


@pytest.mark.parametrize("first_dropped", [0, 2, 4])
def test_state_of_dropped_rows_is_that_of_the_rest(first_dropped: int) -> None:
    """Another journal may have the state recorded before this one is written."""
    blobs = Appending()
    journal = Journal(blobs, "soup/metrics.jsonl")
    for number in range(5):
        journal.put(number, [{"n": number}])
    journal.flush()
    journal.put(first_dropped, [{"n": first_dropped, "loss": 0.5}])  # not written yet
    state = journal.state()
    assert state["rows"] == first_dropped
    assert Journal(blobs, "soup/metrics.jsonl").begins_with(state)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-20],
        lambda content: b"",
        lambda content: content.replace(b"2", b"3", 1),
        lambda content: b"\xff" + content[1:],
        lambda content: b"[" * 100_000 + b"\n" + content,
        lambda content: content.replace(b"\n", b" ", 1),
    ],
)
def test_lost_and_changed_rows_are_noticed(damage: Callable[[bytes], bytes]) -> None:
    blobs = FakeBlobs()
    journal = Journal(blobs, "soup/metrics.jsonl")
    for number in range(5):
        journal.put(number, [{"n": number, "loss": number / 7}])
    journal.flush()
    content = blobs.read("soup/metrics.jsonl") or b""
    assert Journal(blobs, "soup/metrics.jsonl").begins_with(journal.state())
    blobs.write("soup/metrics.jsonl", damage(content))
    assert not Journal(blobs, "soup/metrics.jsonl").begins_with(journal.state())
    blobs.write("soup/metrics.jsonl", content + b'{"n": 5, "lo')  # killed while it appended
    again = Journal(blobs, "soup/metrics.jsonl")
    assert again.begins_with(journal.state())
    again.put(5, [{"n": 5}])
    again.flush()
    assert [row["n"] for row in read_journal(blobs, "soup", "metrics")] == [0, 1, 2, 3, 4, 5]


class Failing(FakeBlobs):
    """Fails at its next write if asked to, as a full disk does."""

    fails = False

    def write(self, name: str, data: bytes) -> None:
        if self.fails:
            raise RunFailed("the disk is full")
        super().write(name, data)


def test_rows_survive_a_failed_write() -> None:
    blobs = Failing()
    journal = Journal(blobs, "soup/metrics.jsonl")
    journal.put(0, [{"n": 0}])
    journal.flush()
    blobs.fails = True
    journal.put(1, [{"n": 1}])
    with pytest.raises(RunFailed):
        journal.flush()
    blobs.fails = False
    journal.put(2, [{"n": 2}])
    journal.flush()
    assert [row["n"] for row in read_journal(blobs, "soup", "metrics")] == [0, 1, 2]
    assert journal.begins_with(Journal(blobs, "soup/metrics.jsonl").state())


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_rows_are_strict_json() -> None:
    blobs = FakeBlobs()
    journal = Journal(blobs, "soup/samples.jsonl")
    rows: list[dict[str, Any]] = [
        {"n": 0, "loss": math.nan, "text": "NaN"},
        {"n": 1, "deep": {"list": [1.0, -math.inf], "tuple": (math.inf,)}},
        {"n": 2, "one": np.float32(0.5), "many": np.array([1.0, np.nan]), "count": np.int64(3)},
    ]
    for row in rows:
        journal.put(row["n"], [row])
    journal.flush()
    lines = (blobs.read("soup/samples.jsonl") or b"").splitlines()
    assert [json.loads(line, parse_constant=refuse_constant) for line in lines] == [
        {"n": 0, "loss": None, "text": "NaN"},
        {"n": 1, "deep": {"list": [1.0, None], "tuple": [None]}},
        {"n": 2, "one": 0.5, "many": [1.0, None], "count": 3},
    ]


def test_metrics_are_read_with_nan() -> None:
    blobs = FakeBlobs()
    journal = Journal(blobs, "soup/metrics.jsonl")
    journal.put(0, [{"n": 0, "loss": math.nan, "reward": 1.0}])
    journal.flush()
    [row] = read_journal(blobs, "soup", "metrics")
    assert math.isnan(row["loss"])
    assert row["reward"] == 1.0

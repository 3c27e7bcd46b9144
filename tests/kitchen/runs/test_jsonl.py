"""JSON lines: one row a line, without secrets."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
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

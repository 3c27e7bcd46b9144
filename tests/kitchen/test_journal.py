"""Lines of JSON, whatever is in the texts."""

from __future__ import annotations

from adapters.fake.blobs import FakeBlobs
from kitchen.journal import Journal
from kitchen.runs import read_journal


def test_a_text_with_line_separators_of_unicode_stays_one_line() -> None:
    blobs, odd = FakeBlobs(), {"n": 0, "text": "one\u2028two\x85three\x0bfour"}
    for number in range(3):  # each is another process, that reads what the one before wrote
        journal = Journal(blobs, "soup/samples.jsonl")
        journal.put(number, [{**odd, "n": number}])
        journal.flush()
    assert read_journal(blobs, "soup", "samples") == [{**odd, "n": number} for number in range(3)]

"""Windows of premises, the lexical baseline, and scores of repeated pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchen.errors import DataError
from stages.claims.scorers import (
    LexicalEntailment,
    TextPair,
    entailment_of,
    sentence_windows,
    similarity_of,
)

TEXT = "One two three. Four five? Six seven eight nine! Ten."


def up_to(words: int) -> Callable[[str], bool]:
    return lambda text: len(text.split()) <= words


def test_a_text_that_fits_is_one_window() -> None:
    assert sentence_windows(TEXT, up_to(10)) == [TEXT]


def test_windows_overlap_by_a_sentence_where_it_fits() -> None:
    assert sentence_windows(TEXT, up_to(6)) == [
        "One two three. Four five?",
        "Four five? Six seven eight nine!",
        "Six seven eight nine! Ten.",
    ]


def test_a_sentence_too_long_is_cut_between_words() -> None:
    assert sentence_windows("a b c d e f. g", up_to(3)) == ["a b c", "d e f.", "g"]


def test_a_hypothesis_without_room_is_an_error() -> None:
    with pytest.raises(DataError, match="leaves no room"):
        sentence_windows("a b", up_to(0))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 12))
def test_windows_fit_and_cover_all_words(sizes: list[int], most: int) -> None:
    words = iter(range(1000))
    text = " ".join(" ".join(f"w{next(words)}" for _ in range(size)) + "." for size in sizes)
    windows = sentence_windows(text, up_to(most))
    assert all(map(up_to(most), windows))
    seen = dict.fromkeys(" ".join(windows).split())
    assert list(seen) == text.split()


class Counting:
    """A scorer that counts the pairs it is given, and calls long premises likely."""

    def __init__(self) -> None:
        self.pairs: list[TextPair] = []

    def fits(self, pair: TextPair) -> bool:
        return len(pair.premise.split()) <= 4

    async def score(self, pairs: Sequence[TextPair]) -> Sequence[float]:
        self.pairs += pairs
        return [1.2 * len(pair.premise.split()) / 4 - 0.5 for pair in pairs]

    def close(self) -> None:
        """Nothing is held."""


def test_the_best_window_counts_and_equal_ones_are_scored_once() -> None:
    scorer = Counting()
    long = TextPair("a b c d. e f.", "h")
    found = asyncio.run(entailment_of(scorer, [long, TextPair("a b c d.", "h"), long]))
    assert found == pytest.approx([0.7, 0.7, 0.7])
    assert scorer.pairs == [TextPair("a b c d.", "h"), TextPair("e f.", "h")]


def test_similarities_are_shares() -> None:
    pairs = [TextPair("a", "b"), TextPair("a b c d e", "b"), TextPair("a", "b")]
    assert asyncio.run(similarity_of(Counting(), pairs)) == [0.0, 1.0, 0.0]


def test_the_baseline_is_the_share_of_words() -> None:
    pairs = [
        TextPair("Aspirin lowered pain, in mice.", "aspirin lowered blood pressure"),
        TextPair("Pain.", "pain"),
        TextPair("Pain.", "mice"),
        TextPair("Pain.", "—"),
    ]
    assert asyncio.run(LexicalEntailment().score(pairs)) == [0.5, 1.0, 0.0, 0.0]

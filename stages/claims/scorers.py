"""Scorers of entailment and similarity: the protocols, and the scores of long premises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from kitchen.errors import DataError

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w+")


class TextPair(NamedTuple):
    """Two texts to compare: a premise and a hypothesis, or two texts that may mean the same."""

    premise: str
    hypothesis: str


class EntailmentScorer(Protocol):
    """A model of natural language inference: does a premise entail a hypothesis?"""

    def fits(self, pair: TextPair) -> bool:
        """Return whether the model reads both texts whole; longer premises are cut for it."""
        ...

    async def score(self, pairs: Sequence[TextPair]) -> Sequence[float]:
        """Return the probability of entailment, 0..1, of each pair that fits."""
        ...

    def close(self) -> None:
        """Free the memory of the scorer; it cannot be used afterwards."""
        ...


class SimilarityScorer(Protocol):
    """A model of how similar the meanings of two texts are."""

    async def score(self, pairs: Sequence[TextPair]) -> Sequence[float]:
        """Return the similarity of each pair; 1 for equal texts, and 0 or less for unrelated."""
        ...

    def close(self) -> None:
        """Free the memory of the scorer; it cannot be used afterwards."""
        ...


class LexicalEntailment:
    """A baseline without a model: the share of the hypothesis's words that the premise has.

    It cannot tell "lowers" from "raises" where the premise has both words, and knows no negation. A
    run of letters is a word, so a sentence of a script without spaces is one word. A hypothesis
    without a word scores 0.
    """

    def fits(self, pair: TextPair) -> bool:
        return True

    async def score(self, pairs: Sequence[TextPair]) -> Sequence[float]:
        return [_word_share(pair) for pair in pairs]

    def close(self) -> None:
        """Nothing is held."""


def _word_share(pair: TextPair) -> float:
    words = _words(pair.hypothesis)
    return len(words & _words(pair.premise)) / len(words) if words else 0.0


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


async def entailment_of(scorer: EntailmentScorer, pairs: Sequence[TextPair]) -> list[float]:
    """Return how likely each premise entails its hypothesis: the maximum over its windows.

    A premise that is too long for the scorer is cut into windows of whole sentences. Equal windows
    are scored once. Raises DataError for a hypothesis that leaves no room for a premise.
    """
    by_pair = [_windows(pair, scorer) for pair in pairs]
    distinct = list(dict.fromkeys(chain.from_iterable(by_pair)))
    scores = dict(zip(distinct, await scorer.score(distinct), strict=True))
    return [max(map(scores.__getitem__, windows)) for windows in by_pair]


async def similarity_of(scorer: SimilarityScorer, pairs: Sequence[TextPair]) -> list[float]:
    """Return the similarity of each pair, 0..1; a negative one counts as 0."""
    distinct = list(dict.fromkeys(pairs))
    scores = dict(zip(distinct, await scorer.score(distinct), strict=True))
    return [min(max(scores[pair], 0.0), 1.0) for pair in pairs]


def _windows(pair: TextPair, scorer: EntailmentScorer) -> list[TextPair]:
    def fits(premise: str) -> bool:
        return scorer.fits(TextPair(premise, pair.hypothesis))

    return [TextPair(text, pair.hypothesis) for text in sentence_windows(pair.premise, fits)]


def sentence_windows(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Cut a text into windows that fit: as many whole sentences as possible in each.

    The last sentence of a window is also the first of the next one where it leaves room for more,
    so that two adjacent sentences that fit are always in one window. A sentence that does not fit
    is cut between words. Raises DataError if not even one word fits.
    """
    if fits(text):
        return [text]
    parts: list[str] = []
    for sentence in _SENTENCE_END.split(text.strip()):
        parts += _fitting_parts(sentence, fits)
    windows: list[str] = []
    start = 0
    while True:
        end = start + 1
        while end < len(parts) and fits(" ".join(parts[start : end + 1])):
            end += 1
        windows.append(" ".join(parts[start:end]))
        if end == len(parts):
            return windows
        overlaps = end - start > 1 and fits(" ".join(parts[end - 1 : end + 1]))
        start = end - 1 if overlaps else end


def _fitting_parts(sentence: str, fits: Callable[[str], bool]) -> Iterator[str]:
    """Halve a sentence between words until each part fits."""
    if fits(sentence):
        yield sentence
        return
    words = sentence.split()
    if len(words) < 2:
        raise DataError(
            f"the hypothesis leaves no room for {sentence[:40]!r} of the premise in the scorer's "
            "context; choose a scorer that reads longer texts, or shorten the hypothesis"
        )
    middle = len(words) // 2
    yield from _fitting_parts(" ".join(words[:middle]), fits)
    yield from _fitting_parts(" ".join(words[middle:]), fits)

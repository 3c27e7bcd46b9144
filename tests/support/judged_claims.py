"""Scorers with known scores, and rows of claims for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stages.claims.answer import parse_answer
from stages.claims.rows import ClaimRow
from stages.claims.scorers import TextPair


class TableScorer:
    """Scores from a table by (premise, hypothesis); other pairs get `otherwise`."""

    def __init__(self, table: Mapping[tuple[str, str], float], otherwise: float = 0.0) -> None:
        self._table, self._otherwise = dict(table), otherwise

    def fits(self, pair: TextPair) -> bool:
        return True

    async def score(self, pairs: Sequence[TextPair]) -> Sequence[float]:
        return [self._table.get(pair, self._otherwise) for pair in pairs]

    def close(self) -> None:
        """Nothing is held."""


def claim_row(
    id: str = "1", *, answer: str | None = None, documents: Mapping[str, str] | None = None
) -> ClaimRow:
    """Return a row with two documents; without `answer`, one without a right answer."""
    right = None if answer is None else parse_answer(answer)
    texts = {"10": "Tea lowers fever.", "20": "Rest lowers pain."}
    return ClaimRow("prompt", texts if documents is None else documents, right, id, f"data:{id}")

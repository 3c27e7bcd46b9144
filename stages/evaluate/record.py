"""The record of an evaluation: a row of samples.jsonl per answer, with its item and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.chat.conversations import Conversation
from stages.chat.prompts import item_of

NO_SCORE = "no score"  # stands for a mean where all items failed


@dataclass(frozen=True)
class RecordedItem:
    """The question of a recorded row, and its place in the data."""

    item: str  # digest of what was asked and what was wanted
    where: str = ""  # the row's place in the data
    columns: Mapping[str, Any] | None = None  # of the row; None or empty if it has none

    @classmethod
    def of(cls, conversation: Conversation) -> RecordedItem:
        """Return the item of a conversation."""
        return cls(item_of(conversation), conversation.where, conversation.columns)


def record_row(
    item: RecordedItem,
    name: str,
    row: int,
    scores: Mapping[str, float],
    *,
    when: str | None = None,
    attempt: int = 0,
    failed: str = "",
    **shown: Any,
) -> dict[str, Any]:
    """Return a row of samples.jsonl; an item that failed has no scores.

    `name` is that of the set, `row` the index in it, and `attempt` the index among several answers
    to the same question. `when` says which weights were evaluated: "before", "after", "teacher" or,
    if a run evaluates one model only, None.
    """
    return {
        **({} if when is None else {"when": when}),
        "set": name,
        "row": row,
        "try": attempt,
        "where": item.where,
        "item": item.item,
        "columns": dict(item.columns or {}),
        **shown,
        "scores": {} if failed else {key: float(value) for key, value in scores.items()},
        "failed": failed,
    }


def counted(items: int, failed: int) -> str:
    """Return the number of items, and of those among them that failed: "200, 3 failed"."""
    return f"{items}, {failed} failed" if failed else str(items)


def recorded_items(conversations: Sequence[Conversation]) -> list[RecordedItem]:
    """Return the items of conversations."""
    return list(map(RecordedItem.of, conversations))

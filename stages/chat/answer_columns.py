"""Columns of a row that hold several answers: right ones, or choices."""

from __future__ import annotations

from kitchen.ports.datasets import Row


def split_answers(row: Row, column: str) -> tuple[Row, tuple[str, ...]]:
    """Return a row with one answer, and the further ones of a list of texts without repetitions."""
    answers = row[column]
    if not isinstance(answers, list | tuple) or not answers:
        return row, ()
    if not all(isinstance(answer, str) for answer in answers):
        return row, ()
    first, *others = dict.fromkeys(answers)
    return {**row, column: first}, tuple(others)

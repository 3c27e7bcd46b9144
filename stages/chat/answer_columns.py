"""Columns of a row that hold several answers: right ones, or choices."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen.ports.datasets import Row


def split_answers(row: Row, fields: Sequence[str]) -> tuple[Row, tuple[str, ...]]:
    """Return a row with one answer, and the further ones of a list of texts without repetitions.

    `fields` are the columns of its format; of two or more, the last one is the answer.
    """
    answers = row[fields[-1]]
    if len(fields) == 1 or not isinstance(answers, list | tuple) or not answers:
        return row, ()
    if not all(isinstance(answer, str) for answer in answers):
        return row, ()
    first, *others = dict.fromkeys(answers)
    return {**row, fields[-1]: first}, tuple(others)

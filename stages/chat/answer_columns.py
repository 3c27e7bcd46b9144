"""Columns of a row that hold several answers: right ones, or choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from kitchen.errors import DataError
from kitchen.ports.datasets import Row


def split_answers(row: Row, fields: Sequence[str]) -> tuple[Row, tuple[str, ...]]:
    """Return a row with one answer, and the further ones of a list of texts without repetitions.

    An object {"text": [...]} stands for its list.

    `fields` are the columns of its format; of two or more, the last one is the answer.
    """
    answers = row[fields[-1]]
    if isinstance(answers, Mapping) and isinstance(answers.get("text"), list | tuple):
        answers = answers["text"]  # of SQuAD, with the places of the answers in the context
    if len(fields) == 1 or not isinstance(answers, list | tuple) or not answers:
        return row, ()
    if not all(isinstance(answer, str) for answer in answers):
        return row, ()
    first, *others = dict.fromkeys(answers)
    return {**row, fields[-1]: first}, tuple(others)


def parse_choices(row: Row, where: str) -> tuple[str, tuple[str, ...], str] | None:
    """Return the column of the question, the choices and the right one; None if there are none.

    `choices` is a list of texts, or {"text": [...], "label": [...]}. The right one is in `answer`
    or `answerKey`: its index from 0, its label (A, B, ... by default) or its text. Raises DataError
    for a column that cannot be read.
    """
    question = next((name for name in ("prompt", "question") if row.get(name) is not None), None)
    if row.get("choices") is None or question is None:
        return None
    choices, labels = _choices_and_labels(row["choices"], where)
    for column in ("answer", "answerKey"):
        if row.get(column) is not None:
            index = _index_of(row[column], column, choices, labels, where)
            return question, choices, choices[index]
    raise DataError(
        f"{where}: the row has {question!r} and 'choices', but 'answer' is missing: the index of "
        "the right choice from 0, its label, or its text"
    )


def choices_around(row: Row, answer: str) -> tuple[str, ...]:
    """Return the choices of a row whose answer is in another column, if it is one of them."""
    choices = row.get("choices")
    if not isinstance(choices, list | tuple) or answer not in choices:
        return ()
    if not all(isinstance(choice, str) for choice in choices):
        return ()
    return tuple(choices)


def _choices_and_labels(value: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    texts = value.get("text") if isinstance(value, Mapping) else value
    labels = value.get("label") if isinstance(value, Mapping) else None
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{where}: choices is not a list of texts, nor an object of lists 'text' and 'label'"
        )
    if len(texts) < 2 or not all(text.strip() for text in texts):
        raise DataError(f"{where}: choices has to be two texts or more, none of them empty")
    if labels is None:
        labels = ascii_uppercase[: len(texts)]
    if len(labels) != len(texts) and isinstance(value, Mapping):
        raise DataError(f"{where}: choices has {len(texts)} texts, but {len(labels)} labels")
    return tuple(texts), tuple(map(str, labels))


def _index_of(
    value: Any, column: str, choices: Sequence[str], labels: Sequence[str], where: str
) -> int:
    """Return the index of the right choice; raises DataError if there are none or several."""
    found = dict[str, int]()
    if isinstance(value, str):
        for kind, names in (("text", choices), ("label", labels)):
            if value in names:
                found[kind] = names.index(value)
    if "label" in found and column == "answerKey":
        return found["label"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and value.strip().isdecimal() and "label" not in found):
        index = float(value)
        if index.is_integer() and 0 <= index < len(choices):
            found["index"] = int(index)
    if not found:
        raise DataError(
            f"{where}: {column} is {value!r}, which is not one of the {len(choices)} choices: "
            "neither its index from 0, nor its label, nor its text"
        )
    if len(set(found.values())) > 1:
        readings = " and ".join(f"the {kind} of choice {at}" for kind, at in found.items())
        raise DataError(
            f"{where}: {column} is {value!r}, which is {readings}, counted from 0; give the index "
            "as a number, or the label in the column answerKey (reading.columns.answer=answerKey)"
        )
    return next(iter(found.values()))

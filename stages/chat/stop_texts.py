"""Texts that end an answer, besides the model's own stop tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator


def _checked(value: Any) -> Any:
    """Return a list of texts; raises ValueError for other values, and for an empty text."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{value!r} is not a list of texts that end an answer; write one text, or several in "
            "brackets"
        )
    if "" in texts:
        raise ValueError("an empty text cannot end an answer: every answer contains it")
    return tuple(texts)


# an answer ends with the token that completes one of these texts, which is part of the answer
StopTexts = Annotated[tuple[str, ...], BeforeValidator(_checked)]

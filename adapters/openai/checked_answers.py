"""Answers as a server may send them: odd ones are malformed, and the API key is taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from adapters.openai.errors import MalformedAnswer
from kitchen.secrets import secrets

T = TypeVar("T")
Check = Callable[[Any], T]  # returns the content of an answer; raises MalformedAnswer
MAX_REASON = 200  # characters
SHORTEST_KEY = 16  # characters: a shorter one may be an ordinary word, such as "ollama"
# what reading a value of another type, or a number without end, raises
_ODD = (
    TypeError,
    LookupError,
    AttributeError,
    ValueError,
    OverflowError,
    RecursionError,
)


def checked(check: Check[T]) -> Check[T]:
    """Return a check to which every answer that it cannot read is malformed."""

    def read(answer: Any) -> T:
        try:
            return check(answer)
        except _ODD as error:
            reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
            raise MalformedAnswer(f"it cannot be read: {reason}") from error

    return read


def without_key(answer: Any, text: str, variable: str, key: str) -> Any:
    """Return an answer without the API key, which a server may repeat; `text` is its JSON.

    A short key stays, as it may be a word of the answer.
    """
    if len(key) < SHORTEST_KEY:
        return answer
    hidden = secrets({variable: key})
    if "\\" not in text and not any(form in text for form in hidden):
        return answer
    return _without(hidden, answer)


def _without(hidden: Iterable[str], value: Any) -> Any:
    if isinstance(value, str):
        for form in hidden:
            value = value.replace(form, "***")
        return value
    if isinstance(value, Mapping):
        return {_without(hidden, name): _without(hidden, item) for name, item in value.items()}
    return [_without(hidden, item) for item in value] if isinstance(value, list) else value

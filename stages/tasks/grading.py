"""Options that prepare answers before they are compared with reference answers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from kitchen.errors import ConfigError

# in numbers, punctuation has a meaning: 1.5 is not 15, and -5 is not 5
_IN_NUMBERS = re.compile(r"(?<=\d)[.,](?=\d)|(?<![\w.])[-−](?=[\d.]*\d)|(?<!\w)\.(?=\d)")
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def _as_typed(value: Any) -> Any:
    """Return a pattern such as [A-D] or 15, which YAML reads as a list or a number, as text."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return f"[{value[0]}]"
    return str(value) if isinstance(value, int) else value


Pattern = Annotated[str, BeforeValidator(_as_typed)]


@dataclass(frozen=True, kw_only=True)
class GradingConfig:
    """Preparation of answers: extraction by a pattern, and differences to ignore."""

    # regular expression that finds the answer in the text: the answer is the first group that
    # matched, or the whole match if there are no groups. The first of several matches counts. A
    # text without a match is wrong. A reference answer without a match is compared unchanged
    extract: Pattern | None = None
    ignore_case: bool = False  # compare texts without regard to upper and lower case
    # compare texts without punctuation, except for signs and decimal points of numbers
    ignore_punctuation: bool = False

    def __post_init__(self) -> None:
        if self.extract is not None:
            _check_pattern(self.extract)

    def text_options(self) -> Mapping[str, bool]:
        """Return the options that are set and only affect comparisons of texts."""
        options = {
            "ignore_case": self.ignore_case,
            "ignore_punctuation": self.ignore_punctuation,
        }
        return {name: value for name, value in options.items() if value}

    def extracted(self, text: str) -> str | None:
        """Return the answer in a text; None if the pattern does not match."""
        if self.extract is None:
            return text
        match = re.search(self.extract, text)
        if match is None:
            return None
        groups = match.groups()
        return next((group for group in groups if group is not None), None) if groups else match[0]

    def reference(self, text: str) -> str:
        """Return a reference answer as answers are compared with it."""
        extracted = self.extracted(text)
        return self.folded(text if extracted is None else extracted)

    def folded(self, text: str) -> str:
        """Return a text without the differences to ignore."""
        if self.ignore_case:
            text = unicodedata.normalize("NFC", text).casefold()
        if self.ignore_punctuation:
            kept = {match.start() for match in _IN_NUMBERS.finditer(text)}
            letters = [
                letter
                for at, letter in enumerate(text)
                if at in kept or not _is_punctuation(letter)
            ]
            text = " ".join("".join(letters).split())
        return text


def _is_punctuation(letter: str) -> bool:
    return letter in _ASCII_PUNCTUATION or unicodedata.category(letter).startswith("P")


def _check_pattern(pattern: str) -> None:
    """Raise ConfigError for an invalid regular expression."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"extract={pattern!r} is not a valid regular expression: {error}. Python's syntax is "
            "used; a bracket that stands for itself is written \\( or \\["
        ) from error

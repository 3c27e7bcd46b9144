"""Errors that a user can fix; each kind has its own exit code."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence

from kitchen.safe_text import escape_controls


class KitchenError(Exception):
    """An error that a user can fix; the command line prints it without a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        """Return the text with control characters escaped, as it may quote data."""
        return escape_controls(super().__str__())


class RunFailed(KitchenError):
    """A run that failed on the way: a non-finite number, a full disk, an unwritable folder."""


class CorruptCheckpoint(RunFailed):
    """A checkpoint that is missing, truncated or does not match its digest."""


class ConfigError(KitchenError):
    """A recipe, setting or adapter that does not exist, or a value that it cannot have."""

    exit_code = 2


class ResumeError(ConfigError):
    """A saved run that differs from the one to be resumed."""


class DataError(KitchenError):
    """Missing, malformed or empty data; the text names the file, line and field."""

    exit_code = 3


class BackendError(KitchenError):
    """A backend that lacks something: a model, a package, a key, a device."""

    exit_code = 4


class ApiError(BackendError):
    """A request that a server refused, with its HTTP status and its body without secrets."""

    def __init__(self, text: str, *, status: int, body: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.body = body


class SessionLost(BackendError):
    """A training session lost with its server or connection; it can resume from a save point."""


class QualityError(KitchenError):
    """A quality target that was not met."""

    exit_code = 5


class Interrupted(KitchenError):
    """A run stopped by Ctrl-C, with its progress saved."""

    exit_code = 130


def check_name(setting: str, value: str, known: Iterable[str]) -> None:
    """Raise ConfigError if the value of a setting is not one of the known names."""
    names = tuple(known)
    if value not in names:
        raise ConfigError(f"{setting}={value!r} is unknown; {did_you_mean(value, names)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error text: the closest known names, or all if none is close."""
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(name) for name in close) + "?"
    return "there are: " + ", ".join(names) if names else "there are none"


def check_numbers(
    settings: Mapping[str, float], *, above_0: Sequence[str] = (), below_1: Sequence[str] = ()
) -> None:
    """Raise ConfigError for a setting that is not a finite number of at least 0.

    Settings in `above_0` must be greater than 0, those in `below_1` less than 1.
    """
    for name, value in settings.items():
        positive = name in above_0
        bounds = "above 0" if positive else "at least 0"
        valid = math.isfinite(value) and (value > 0 if positive else value >= 0)
        if name in below_1:
            bounds = f"{bounds} and below 1"
            valid = valid and value < 1
        if not valid:
            raise ConfigError(f"{name} is {value}, and must be a number {bounds}")

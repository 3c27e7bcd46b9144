"""What can go wrong, by whose turn it is to mend it; each kind has its exit code."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence


class KitchenError(Exception):
    """Something a user can mend; the command line prints it without a traceback."""

    exit_code = 1


class RunFailed(KitchenError):
    """The run could not go on: a number that is not finite, a full disk, a folder that cannot be
    written.
    """


class CorruptCheckpoint(RunFailed):
    """A checkpoint is missing, cut short or not what its digest says."""


class ConfigError(KitchenError):
    """A recipe, setting or adapter that does not exist, or a value that it cannot have."""

    exit_code = 2


class ResumeError(ConfigError):
    """The run that was saved is not the one that is resumed."""


class DataError(KitchenError):
    """Data that is missing, malformed or empty; the text names the file, line and field."""

    exit_code = 3


class BackendError(KitchenError):
    """A backend that lacks something: a model, a package, a key, a device."""

    exit_code = 4


class ApiError(BackendError):
    """A server refused a request; `status` is that of HTTP, and `body` what it said, without
    secrets.
    """

    def __init__(self, text: str, *, status: int, body: str = "") -> None:
        super().__init__(text)
        self.status, self.body = status, body


class SessionLost(BackendError):
    """A session that is gone with its server or its connection; opened again, it goes on from the
    last save point.
    """


class QualityError(KitchenError):
    """A quality target was not met."""

    exit_code = 5


class Interrupted(KitchenError):
    """Ctrl-C: what was reached is saved."""

    exit_code = 130


def check_name(setting: str, value: str, known: Iterable[str]) -> None:
    """Raises ConfigError where the value of the setting is none of the names known."""
    if value not in (names := tuple(known)):
        raise ConfigError(f"{setting}={value!r} is unknown; {did_you_mean(value, names)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error text: the nearest known names, or all of them where none is near."""
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    return "there are: " + ", ".join(names) if names else "there are none"


def check_numbers(
    settings: Mapping[str, float], *, above_0: Sequence[str] = (), below_1: Sequence[str] = ()
) -> None:
    """Raise ConfigError for one that is no finite number of at least 0, or not within what its name
    is listed for.
    """
    for name, value in settings.items():
        bounds = "above 0" if name in above_0 else "at least 0"
        fits = value > 0 if name in above_0 else value >= 0
        if name in below_1:
            bounds, fits = f"{bounds} and below 1", fits and value < 1
        if not (fits and math.isfinite(value)):
            raise ConfigError(f"{name} is {value}, and must be a number {bounds}")

"""Errors that a user can fix, each kind with its own exit code, and errors in users' code."""

from __future__ import annotations

import difflib
import math
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kitchen.safe_text import escape_controls

_MAX_NAMES = 50  # that an error lists
_HERE = Path(__file__).resolve().parents[1]
# packages have a version that is recorded; recipes and what they use may have been edited
_NOT_USER_CODE = (
    *(_HERE / name for name in ("kitchen", "adapters", "stages")),
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")),
)


class KitchenError(Exception):
    """An error that a user can fix; the command line prints it without a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        """Return the text with control characters escaped, as it may quote data."""
        return escape_controls(super().__str__())


class RunFailed(KitchenError):
    """The run failed: a non-finite number, a full disk, an unwritable folder."""


class CorruptCheckpoint(RunFailed):
    """A checkpoint that is missing, truncated or does not match its digest."""


class Diverged(RunFailed):
    """A loss, gradient or log-probability that is not finite; resuming computes the same again."""


class WorkerExit(BaseException):
    """SystemExit or the like in a worker process; its text is the one of `describe_error`."""


class ConfigError(KitchenError):
    """A recipe, setting or adapter that does not exist, or an invalid value."""

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


class SuiteFailed(KitchenError):
    """A test suite of the user that must pass before a run goes on, and did not."""

    exit_code = 6


class Interrupted(KitchenError):
    """A run stopped by Ctrl-C, with its progress saved."""

    exit_code = 130


def check_name(setting: str, value: str, known: Iterable[str]) -> None:
    """Raise ConfigError if the value of a setting is not one of the known names."""
    names = tuple(known)
    if value not in names:
        raise ConfigError(f"{setting}={value!r} is unknown; {did_you_mean(value, names)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error text: the closest known names, or the first if none is close."""
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(name) for name in close) + "?"
    if not names:
        return "there are none"
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"there are: {', '.join(names[:_MAX_NAMES])}{more}"


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


def is_user_file(file: str) -> bool:
    """Return whether a source file belongs to the user: not to us, to Python or to a package."""
    if not file.endswith(".py"):
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in _NOT_USER_CODE)


def describe_error(error: BaseException) -> str:
    """Return an error in one text: ours as it is, others with their type and the user's frame."""
    first = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, KitchenError | WorkerExit):
        return str(first)
    try:
        text = f"{type(first).__name__}: {first}".removesuffix(": ")
    except Exception as failure:  # noqa: BLE001 a __str__ of the user's
        text = f"{type(first).__name__} (its text cannot be shown: {type(failure).__name__})"
    place = user_frame(first) or user_frame(error)
    return f"{text} ({place})" if place else text


def user_frame(error: BaseException) -> str:
    """Return the innermost frame in the user's code, as `file:line in function`; else empty."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return f"{_relative(frame.filename)}:{frame.lineno} in {frame.name}"
    return "" if error.__cause__ is None else user_frame(error.__cause__)


def _relative(file: str) -> str:
    """Return a file's path from the current folder, if it is in there."""
    prefix = os.getcwd() + os.sep
    return os.path.abspath(file).removeprefix(prefix)


@contextmanager
def exits_as_failures() -> Iterator[None]:
    """Raise RunFailed where the code in the block raises SystemExit, or another BaseException.

    It would end the event loop, and with it the run, without being reported. Ctrl-C and
    cancellation of the task stay as they are.
    """
    import asyncio  # where it is not needed, such as for --help, it takes long to import

    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and _is_task_cancelled():
            raise
        raise exit_as_failure(error) from error


def exit_as_failure(error: BaseException) -> RunFailed:
    """Return the failure for an exception that ends programs, raised by code that a run calls."""
    return RunFailed(
        f"{describe_error(error)}: code that a run calls must not exit; raise an Exception"
    )


def _is_task_cancelled() -> bool:
    """Return whether the current task was asked to end; else what it waits for was cancelled."""
    import asyncio

    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0

"""Structured logs by structlog, written to the console and to the log of the current run."""

from __future__ import annotations

import contextvars
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

import structlog

from kitchen.secrets import masked, printable

Sink = Callable[[MutableMapping[str, Any]], None]
_MULTILINE = ("event", "exception")  # keys of entries that may have several lines
_LEVELS = ("debug", "info", "warning", "error", "critical")
_SINKS: contextvars.ContextVar[tuple[Sink, ...]] = contextvars.ContextVar(
    "kitchen_log_sinks", default=()
)


def configure(debug: bool = False) -> None:
    """Log from info up (with `debug`, everything) to standard error and to the current run."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _drop_below("debug" if debug else "info"),
            copy_to_sinks,
            _shorten_time,
            mask_values,
            structlog.dev.ConsoleRenderer(colors=_shows_colours(), pad_event_to=0),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(cast(TextIO, _STDERR)),
        cache_logger_on_first_use=False,
    )


def ensure_configured() -> None:
    """Log as `configure` does, unless the program has configured structlog for itself."""
    if not structlog.is_configured():
        configure()


def _shows_colours() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


class _CurrentStderr:
    """Standard error, looked up at each write, because a progress bar replaces `sys.stderr`.

    If it is closed, or nobody reads it any more, the entry is only in the log of the run.
    """

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError, AttributeError):  # AttributeError: it is None
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


_STDERR = _CurrentStderr()  # a single one: loggers with the same file share a lock


@contextmanager
def copy_log_to(sink: Sink) -> Iterator[None]:
    """Give a copy of every entry to a sink during the block, in this thread and tasks it starts."""
    token = _SINKS.set((*_SINKS.get(), sink))
    try:
        yield
    finally:
        _SINKS.reset(token)


def copy_to_sinks(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Copy an entry to the sinks of `copy_log_to`; a processor of structlog."""
    for sink in _SINKS.get():
        sink(dict(event))
    return event


def _shorten_time(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Leave out the fractions of a second, which the log of the run has; for structlog."""
    event["timestamp"] = f"{event['timestamp'].partition('.')[0]}Z"
    return event


def mask_values(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Mask secrets and escape control characters in an entry; a processor of structlog.

    Only a traceback has lines: a value with a line feed could otherwise pass for another entry.
    """
    return {key: _shown(key, value) for key, value in event.items()}


def _shown(key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return masked(value)
    text = printable(value)
    return text if key in _MULTILINE else text.replace("\n", "\\n")


def _drop_below(
    level: str,
) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    """Return a processor of structlog that drops entries below a level."""
    dropped = _LEVELS[: _LEVELS.index(level)]

    def drop(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event.get("level") in dropped:
            raise structlog.DropEvent
        return event

    return drop

"""Structured logs by structlog: to the console, and into the log of the run that is under way."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TextIO, cast

import structlog

from kitchen.secrets import mask

Sink = Callable[[MutableMapping[str, Any]], None]
_SINKS: contextvars.ContextVar[tuple[Sink, ...]] = contextvars.ContextVar(
    "kitchen_log_sinks", default=()
)


def configure(debug: bool = False) -> None:
    """For a command: warnings (with `debug`, everything) to standard error, all to the run that is
    under way.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            into_run,
            _only_from("debug" if debug else "info"),
            masked,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(cast(TextIO, _STDERR)),
        cache_logger_on_first_use=False,
    )


class _Stderr:
    """That of the moment, for a progress bar puts its own."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


_STDERR = _Stderr()  # one for all, for by it loggers know that they are to wait for each other


@contextmanager
def into(sink: Sink) -> Iterator[None]:
    """Give a copy of every entry to a sink while the block lasts, in this thread and in tasks begun
    in it.
    """
    token = _SINKS.set((*_SINKS.get(), sink))
    try:
        yield
    finally:
        _SINKS.reset(token)


def masked(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: mask(value) if isinstance(value, str) else value for key, value in event.items()}


def into_run(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for sink in _SINKS.get():
        sink(dict(event))
    return event


def _only_from(
    level: str,
) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    order = ("debug", "info", "warning", "error", "critical")
    below = order[: order.index(level)]

    def drop(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event.get("level") in below:
            raise structlog.DropEvent
        return event

    return drop

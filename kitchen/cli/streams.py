"""Standard output and error of the command line, which may be closed, full or without a reader."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TYPE_CHECKING, TextIO

from kitchen.errors import RunFailed

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READER_GONE = 141  # 128 + SIGPIPE, the exit code of a program whose reader has gone
_NAMES = {1: "standard output", 2: "standard error"}
_ANSWERS = ContextVar[TextIO | None]("kitchen_answers", default=None)


class _StandardStream(io.FileIO):
    """A standard stream that fails at most once, and never if `drops_output` is set."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        # a reason that cannot be printed must not hide the result of a command
        self.drops_output = descriptor == 2
        self._failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        if self._failed:
            return size
        try:
            return super().write(data)
        except OSError as error:
            self._failed = True
            if self.drops_output:
                return size
            if isinstance(error, BrokenPipeError):
                # without an errno, or Typer would exit with code 1 by itself
                raise BrokenPipeError("the reader has closed the pipe") from error
            raise RunFailed(
                f"{_NAMES[self.fileno()]}: {error.strerror}; free some space, or send it elsewhere"
            ) from error


def prepare_streams() -> None:
    """Replace closed standard streams by the null device, and print every character somehow."""
    _open_closed_descriptors()
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 for the process
    sys.stdout = _prepared(sys.stdout, 1)
    sys.stderr = _prepared(sys.stderr, 2)


@contextmanager
def only_answers_on_stdout(machine_readable: bool) -> Iterator[None]:
    """Redirect what is printed in the block, by a user's module for example, to standard error.

    So standard output has only what is printed to `answers()`, which a program reads.
    """
    if not machine_readable:
        yield
        return
    token = _ANSWERS.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _ANSWERS.reset(token)


def answers() -> TextIO:
    """Return standard output, also in a block of `only_answers_on_stdout`."""
    return _ANSWERS.get() or sys.stdout


def drop_unread_output() -> None:
    """From now on, drop output that cannot be written, as a run must not end for that."""
    raw = getattr(getattr(answers(), "buffer", None), "raw", None)
    if isinstance(raw, _StandardStream):
        raw.drops_output = True


def _open_closed_descriptors() -> None:
    """Open the null device for 0, 1 and 2, or the next file that is opened would take its place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _prepared(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return a stream that writes as `_StandardStream` does, unless the stream was replaced."""
    if stream is not None and not _writes_to(stream, descriptor):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        return stream
    encoding = "utf-8" if stream is None else stream.encoding
    if stream is not None:
        stream.flush()
    buffered = io.BufferedWriter(_StandardStream(descriptor))
    is_immediate = descriptor == 2 or buffered.raw.isatty()
    # a terminal without ½ must not end a run
    return io.TextIOWrapper(buffered, encoding, "replace", line_buffering=is_immediate)


def _writes_to(stream: TextIO, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError, AttributeError):
        return False

"""Log entries on the console."""

from __future__ import annotations

import io
import sys
import threading

import pytest
import structlog

from kitchen.backend.logs import configure
from tests.support.polling import wait_until


def test_loggers_write_to_the_current_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar may replace it after a logger was bound."""
    configure()
    bound = structlog.get_logger("one").bind()
    replaced = io.StringIO()
    monkeypatch.setattr("sys.stderr", replaced)
    bound.warning("slow", seconds=3)
    assert "slow" in replaced.getvalue()
    assert "seconds=3" in replaced.getvalue()


@pytest.mark.parametrize(("term", "coloured"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_gets_no_colours(
    term: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", term)
    configure()
    structlog.get_logger("one").warning("slow")
    assert ("\x1b" in terminal.getvalue()) == coloured


def test_loggers_on_two_threads_write_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """`print` writes a text and its line break one after the other."""
    configure()
    first, second = (structlog.get_logger(name).bind() for name in ("first", "second"))
    thread = threading.Thread(target=second.warning, args=("slow",))
    written: list[str] = []

    def waits_or_writes() -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        return len(written) > 1 or (frame is not None and frame.f_code.co_name == "msg")

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            if len(written) == 1:
                thread.start()
                wait_until(waits_or_writes)  # `msg` of structlog waits for its lock
            return len(text)

    monkeypatch.setattr("sys.stderr", Recorder())
    first.warning("slow")
    thread.join(60)
    assert len(written) == 4
    assert written[1] == written[3] == "\n"

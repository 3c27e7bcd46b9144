"""Log entries on the console."""

from __future__ import annotations

import contextlib
import io
import threading

import pytest
import structlog

from kitchen.runs.logs import configure


def test_loggers_write_to_the_current_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar may replace it after a logger was bound."""
    configure()
    bound = structlog.get_logger("one").bind()
    replaced = io.StringIO()
    monkeypatch.setattr("sys.stderr", replaced)
    bound.warning("slow", seconds=3)
    assert "slow" in replaced.getvalue()
    assert "seconds=3" in replaced.getvalue()


def test_loggers_on_two_threads_write_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """`print` writes a text and its line break one after the other."""
    configure()
    written: list[str] = []
    both_writing = threading.Barrier(2)

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            if text != "\n":
                with contextlib.suppress(threading.BrokenBarrierError):
                    both_writing.wait(0.2)  # seconds; the other must not come before the line ends
            return len(text)

    monkeypatch.setattr("sys.stderr", Recorder())
    loggers = [structlog.get_logger(name).bind() for name in ("one", "other")]
    threads = [threading.Thread(target=logger.warning, args=("slow",)) for logger in loggers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(written) == 4
    assert written[1] == written[3] == "\n"

"""Log entries on the console."""

from __future__ import annotations

import io
import sys
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
    barrier = threading.Barrier(2)

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    def log(name: str) -> None:
        barrier.wait(60)
        for _ in range(200):
            structlog.get_logger(name).bind().warning("slow")

    monkeypatch.setattr("sys.stderr", Recorder())
    threads = [threading.Thread(target=log, args=(name,)) for name in ("one", "other")]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # seconds; so that threads interleave wherever they can
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert len(written) == 2 * 2 * 200
    assert set(written[1::2]) == {"\n"}

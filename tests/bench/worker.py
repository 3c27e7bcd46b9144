"""One process per side, which takes a step when the parent process requests it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from tests.bench.turns import Finished, Side, Step, Turns, Values, numbers

EXIT_TIMEOUT = 10.0  # seconds
_log = logging.getLogger(__name__)


class Worker:
    """The process of a side, as seen by the parent, which starts it and requests steps."""

    def __init__(self, side: Side, logs: Path) -> None:
        # each side configures torch and its threads itself
        context = multiprocessing.get_context("spawn")
        self.name, self._log = side.name, logs / f"{side.name.replace(' ', '-')}.log"
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(side, theirs, self._log), daemon=True)
        self._process.start()
        self._started = perf_counter()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ready(self) -> None:
        """Wait until the side is ready for its next step."""
        self._expect("ready")
        _log.info("%s: ready %.1f s after its start", self.name, perf_counter() - self._started)

    def step(self) -> Step:
        """Run and time one step; then wait until the side is ready again."""
        started = perf_counter()
        with suppress(OSError):  # the process has ended; `_expect` raises its error
            self._pipe.send("go")
        self._expect("done")
        seconds = perf_counter() - started
        values = self._expect("report")
        _log.info("%s: %.3f s %s", self.name, seconds, numbers(values))
        self._expect("ready")
        return Step(seconds, values)

    def close(self) -> None:
        with suppress(OSError):  # the process has ended already
            self._pipe.send("over")
        self._process.join(EXIT_TIMEOUT)
        if self._process.is_alive():  # it is still in a step
            self._process.terminate()
            self._process.join()
        self._pipe.close()

    def _expect(self, wanted: str) -> Values:
        try:
            word, values = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(EXIT_TIMEOUT)
            raise RuntimeError(
                f"{self.name}: its process ended with exit code {self._process.exitcode} "
                f"(-9: out of memory?); its log is\n{self._end_of_log()}"
            ) from None
        if word == "failed":
            raise RuntimeError(
                f"{self.name}:\n{values['why']}\nThe end of its log:\n{self._end_of_log()}"
            )
        if word != wanted:
            raise RuntimeError(f"{self.name} sent {word!r} instead of {wanted!r}")
        received: Values = values
        return received

    def _end_of_log(self) -> str:
        return (
            "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            if self._log.is_file()
            else "empty"
        )


def _serve(side: Side, pipe: Connection, log: Path) -> None:
    """Run a side, with its output redirected to the log."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    turns = Turns(pipe)
    try:
        side.run(turns)
        turns.wait()
    except Finished:
        return
    except BaseException:  # noqa: BLE001 the parent raises an error with it
        pipe.send(("failed", {"why": traceback.format_exc()}))

"""One process per side, driven step by step by the process with the clock."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from tests.bench.turns import Over, Side, Step, Turns, Values

PATIENCE = 10.0  # seconds that a process has to end


class Worker:
    """The parent's end of a side: starts its process and gives it its turns."""

    def __init__(self, side: Side, logs: Path) -> None:
        # each side sets up torch and its threads for itself
        context = multiprocessing.get_context("spawn")
        self.name, self._log = side.name, logs / f"{side.name.replace(' ', '-')}.log"
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(side, theirs, self._log), daemon=True)
        self._process.start()
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
        """Wait until the side has loaded, or has cleaned up after its step."""
        self._expect("ready")

    def step(self) -> Step:
        """Run one step; then wait until the process is quiet again."""
        started = perf_counter()
        with suppress(OSError):  # it ended during another side's turn; `_expect` raises its error
            self._pipe.send("go")
        self._expect("done")
        seconds = perf_counter() - started
        values = self._expect("report")
        self.ready()
        return Step(seconds, values)

    def close(self) -> None:
        with suppress(OSError):  # it has ended by itself
            self._pipe.send("over")
        self._process.join(PATIENCE)
        if self._process.is_alive():  # in the middle of a step
            self._process.terminate()
            self._process.join()
        self._pipe.close()

    def _expect(self, wanted: str) -> Values:
        try:
            word, values = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(PATIENCE)
            raise RuntimeError(
                f"{self.name}: its process ended with exit code {self._process.exitcode} "
                f"(-9: out of memory?); its log is\n{self._tail()}"
            ) from None
        if word == "failed":
            raise RuntimeError(
                f"{self.name}:\n{values['why']}\nThe end of its log:\n{self._tail()}"
            )
        if word != wanted:
            raise RuntimeError(f"{self.name} sent {word!r} instead of {wanted!r}")
        found: Values = values
        return found

    def _tail(self) -> str:
        return (
            "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            if self._log.is_file()
            else "empty"
        )


def _serve(side: Side, pipe: Connection, log: Path) -> None:
    """Run a side; output of libraries goes to the log."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    turns = Turns(pipe)
    try:
        side.run(turns)
        turns.wait()
    except Over:
        return
    except BaseException:  # noqa: BLE001 the parent raises it
        pipe.send(("failed", {"why": traceback.format_exc()}))

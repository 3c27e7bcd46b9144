"""The table of a series of checks, whose rows are also printed as they come."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

from rich.console import Console
from rich.table import Table


class Report:
    """Rows of checks, and the number of those that failed."""

    def __init__(self, *columns: str) -> None:
        self._table, self._failures = Table(*columns), 0

    def add(self, *cells: str, works: bool) -> None:
        print("; ".join(cell for cell in cells if cell), flush=True)
        self._table.add_row(*cells)
        self._failures += not works

    def check(self, name: str, check: Callable[[], str]) -> None:
        """Add a row with the details that a check returns; an exception is a failed check."""
        started, works = time.perf_counter(), True
        try:
            details = check()
        except Exception as error:  # noqa: BLE001 continue with the other checks
            traceback.print_exc()
            details, works = f"{type(error).__name__}: {error}", False
        seconds = f"{time.perf_counter() - started:.0f}"
        self.add(name, "works" if works else "FAILS", seconds, details, works=works)

    def finish(self, width: int = 150) -> int:
        """Print the table; return the exit code."""
        Console(width=width).print(self._table)
        return int(self._failures > 0)

"""The end of a process in which threads may still compute."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass


@dataclass
class ProcessEnd:
    """The exit code of a failed or interrupted command, and its use if threads are left."""

    code: str | int | None = None

    def skip_finalisation(self) -> None:
        """End the process without Python's finalisation, if a failed command left threads.

        It is registered with `atexit` before everything else, so that it runs last. A thread that
        returns from the C++ code of PyTorch during the finalisation would abort the process.
        """
        if not isinstance(self.code, int) or self.code == 0 or threading.active_count() == 1:
            return
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.code)

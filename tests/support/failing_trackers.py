"""Trackers that raise, hang or sleep, for entry points."""

from __future__ import annotations

import threading
import time

from tests.support.scripted_tracker import ScriptedTracker, raising


class Raising(ScriptedTracker):
    def __init__(self) -> None:
        super().__init__(raising("metrics", OSError("the server is gone")))


class Hanging(ScriptedTracker):
    def __init__(self) -> None:
        super().__init__(lambda method: threading.Event().wait() if method == "metrics" else None)


class Sleeping(ScriptedTracker):
    def __init__(self) -> None:
        super().__init__(lambda method: time.sleep(0.4) if method == "metrics" else None)


class Unusable(ScriptedTracker):
    def __init__(self) -> None:
        super().__init__()

    def prepare(self, state: object) -> None:
        raise ImportError("libtracker.so is missing")

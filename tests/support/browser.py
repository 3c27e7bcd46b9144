"""A headless Chromium that a test drives through the DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.polling import wait_until

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_TIMEOUT = 60.0  # seconds


def find_browser() -> str | None:
    """Return the path of a Chromium, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Tab:
    """A page of the browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._call("Page.enable")

    def resize(self, width: int, scheme: str) -> None:
        """Set the width in pixels, and the colour scheme: light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        self.wait_until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; raises AssertionError for an exception."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_until(self, expression: str) -> None:
        wait_until(lambda: self.evaluate(expression), _TIMEOUT)

    def press_tab(self) -> None:
        for kind in ("keyDown", "keyUp"):
            key = {"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
            self._call("Input.dispatchKeyEvent", **key)

    def screenshot(self) -> bytes:
        return base64.b64decode(self._call("Page.captureScreenshot")["data"])

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            answer = json.loads(self._connection.recv(_TIMEOUT))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]


@contextmanager
def browser_tab(program: str, profile: Path) -> Iterator[Tab]:
    """Start the browser with an empty profile, and end it with the block."""
    command = [
        program,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            found = (re.search(r"listening on (ws://\S+)", line) for line in lines)
            address = next(match[1] for match in found if match)
            with connect(address, max_size=None) as connection:
                yield Tab(connection)
        finally:
            process.kill()

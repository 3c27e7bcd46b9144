"""The pages in a real browser, while a run is in progress."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.local.blobs import LocalBlobs
from tests.support.browser import browser_tab, find_browser
from tests.support.commands import kitchen
from tests.support.evaluated_runs import scored_rows, write_evaluated_run
from tests.support.polling import wait_until

BROWSER = find_browser()
SERVER = """
import sys
from adapters.local.blobs import LocalBlobs
from adapters.view.serve import ViewServer
for address in ViewServer(LocalBlobs("runs")).serve("127.0.0.1", 0):
    print(address, flush=True)
"""
RUN = ("run", "recipes.sl_basic", "--training", "fake", "--name", "going", "epochs=100")
STEPS = "document.querySelector('#live progress').value"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a server over runs of which one is in progress."""
    blobs = LocalBlobs(str(tmp_path / "runs"))
    write_evaluated_run(blobs, "old", scored_rows([0.0] * 40))
    write_evaluated_run(blobs, f"new-{'x' * 80}", scored_rows([1.0] * 40))
    with (
        subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=tmp_path,
            env={**os.environ, "KITCHEN_UI_KEY": ""},
            stdout=subprocess.PIPE,
            text=True,
        ) as server,
        subprocess.Popen(
            [sys.executable, "-m", "kitchen.cli", *RUN],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as run,
    ):
        try:
            assert server.stdout is not None
            wait_until(lambda: (tmp_path / "runs/going/metrics.jsonl").exists())
            yield server.stdout.readline().strip()
        finally:
            run.kill()
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == -signal.SIGTERM


def test_pages_are_live_and_fit_every_width(address: str, tmp_path: Path) -> None:
    assert BROWSER is not None
    shots = Path(os.environ.get("KITCHEN_SCREENSHOTS", tmp_path))
    new = f"new-{'x' * 80}"
    pages = {
        "list": "/",
        "run": "/runs/going",
        "samples": "/runs/old/samples",
        "report": f"/report?name=old&name={new}",
    }
    with browser_tab(BROWSER, tmp_path / "profile") as tab:
        for width, scheme in ((1280, "light"), (390, "dark")):
            tab.resize(width, scheme)
            for name, path in pages.items():
                tab.open(address + path)
                if name == "run":
                    tab.wait_until("!!document.querySelector('#live progress')")
                shown = tab.evaluate("document.documentElement.scrollWidth")
                assert shown <= width, (name, shown)
                (shots / f"{name}-{width}.png").write_bytes(tab.screenshot())
            back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            light = sum(map(int, re.findall(r"\d+", back)[:3])) > 3 * 128
            assert light == (scheme == "light")
        tab.open(f"{address}/runs/going")
        before = tab.evaluate(STEPS)
        tab.wait_until(f"{STEPS} > {before}")
        tab.open(address)
        focused = []
        for _ in range(8):
            tab.press_tab()
            focused.append(tab.evaluate("document.activeElement.tagName"))
        assert focused[:4] == ["A", "A", "INPUT", "SELECT"]
        tab.evaluate("shown = document.querySelector('#live table'), 0")
        tab.evaluate("box = document.querySelector('#live input'), box.click(), box.focus(), 0")
        tab.wait_until("!shown.isConnected && document.querySelectorAll('#live tr').length > 3")
        assert tab.evaluate("document.activeElement.checked && document.activeElement.value")
        assert tab.evaluate("document.querySelectorAll('#live input:checked').length") == 1
    assert kitchen(tmp_path, "runs").returncode == 0

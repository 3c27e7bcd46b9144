"""The judge on the page of recipes.rl, against a server with the API of OpenAI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from stages.tasks.tasks import LoadTasks
from tests.support.commands import in_folder
from tests.support.pages import ROOT, page_files

ROWS = [{"prompt": f"Name dish {n}."} for n in range(2)]


class _Judge(BaseHTTPRequestHandler):
    """Rates answers with "soup" by 7 and "stew" by 12, and refuses to rate others."""

    def do_POST(self) -> None:
        body: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["messages"][0]["content"]
        is_right = self.path == "/v1/chat/completions" and body["model"] == "judge"
        reply = "Rating: 7" if "soup" in asked else "12" if "stew" in asked else "No."
        answer = {"choices": [{"message": {"role": "assistant", "content": reply}}]}
        self.send_response(200 if is_right and "Name dish 1." in asked else 400)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Judge) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/v1"
        running.shutdown()


def test_judge_of_the_page_rates_answers(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = page_files(ROOT / "docs/recipes/rl.md")
    (tmp_path / "judged.py").write_text(page["judged.py"])
    monkeypatch.setenv("JUDGE_URL", server)
    monkeypatch.setenv("JUDGE_MODEL", "judge")
    store = FakeDatasets({"dishes": {"train": ROWS, "held": ROWS[:1]}})
    with in_folder(tmp_path):
        tasks = LoadTasks("dishes", reward="judged:judged").run(store)[0]
    rewards = [
        asyncio.run(tasks.train[1].env().step(answer)).reward for answer in ("soup", "stew", "tea")
    ]
    assert rewards == [0.7, 1.0, None]

"""A recorder between a client and the server, which keeps the answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen


@contextmanager
def recorded(url: str) -> Iterator[tuple[str, Sequence[bytearray]]]:
    """Yield an address from which POST requests go to a server, and its answers so far."""
    answers: list[bytearray] = []

    class Forward(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name: self.headers[name] for name in ("authorization", "content-type")}
            with urlopen(Request(url + self.path, body, headers)) as answer:
                self.send_response(answer.status)
                self.send_header("content-type", answer.headers["content-type"])
                self.end_headers()
                received = bytearray()
                answers.append(received)
                while part := answer.read1():
                    received += part
                    self.wfile.write(part)

        def log_message(self, *arguments: Any) -> None:
            """Write nothing: the server has a log of its own."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", answers
        finally:
            server.shutdown()


def streamed_text(answer: bytes | bytearray) -> str:
    """Return the text of a streamed answer of a chat."""
    events = [line[len("data: ") :] for line in answer.decode().splitlines() if line]
    assert events.pop() == "[DONE]", events
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)

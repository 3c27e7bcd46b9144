"""`kitchen doctor` reports what is here and what is missing, in time, and never a secret."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kitchen.cli.commands.system_info import HubProbe, disk
from kitchen.config.extras import extras
from tests.support.commands import kitchen

SECRET = "hf_s3cr3t-s3cr3t"


class StatusFromPath(BaseHTTPRequestHandler):
    """Answers 200 at /, else with the status that the path names."""

    def do_HEAD(self) -> None:
        self.send_response(int(self.path.strip("/") or 200))
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None: ...


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), StatusFromPath) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that accepts connections; the test decides what it sends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def probe(monkeypatch: pytest.MonkeyPatch, endpoint: str, timeout: float = 0.5) -> tuple[bool, str]:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    answer = HubProbe(timeout).answer()
    return answer["reachable"], answer["status"]


def test_it_reports_what_is_here(tmp_path: Path, hub: str) -> None:
    done = kitchen(
        tmp_path,
        *("doctor", "--json", "--runs", "menus"),
        HF_ENDPOINT=hub,
        HF_TOKEN=SECRET,
        TINKER_API_KEY="",
        TINKER_BASE_URL="",
        HF_HOME=str(tmp_path / "hf"),
        KITCHEN_CACHE=str(tmp_path / "cache"),
        OMP_NUM_THREADS="1",
    )
    found = json.loads(done.stdout)
    assert done.returncode == found["exit_code"] == (4 if found["problems"] else 0), done.stdout
    assert found["versions"]["python"] == sys.version.split()[0]
    assert found["versions"]["crucible-kitchen"]
    assert found["machine"]["processors"] > 0
    assert found["machine"]["memory"] > 10**8
    assert {purpose: folder["where"] for purpose, folder in found["disk"].items()} == {
        "runs": str(tmp_path / "menus"),
        "converted models": str(tmp_path / "cache"),
        "Hugging Face": str(tmp_path / "hf/hub"),
    }
    assert found["keys"]["HF_TOKEN"] == "set"
    assert found["keys"]["TINKER_API_KEY"] == "not set"
    assert found["hub"] == {"endpoint": hub, "reachable": True, "status": "answers"}
    assert found["servers"] == []
    assert found["model"]["name"].startswith("packaged:")
    assert SECRET not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "it only looks, and writes nothing"
    if find_spec("torch"):
        from adapters.fake.hub import FakeHub
        from adapters.peft.device import Machine
        from adapters.peft.settings import Settings

        machine = Machine(Settings(), FakeHub())
        assert found["machine"]["devices"][0].startswith(machine.device.type)
        assert f"torch.{found['machine']['dtype']}" == str(machine.dtype)


def test_it_names_what_is_wrong(tmp_path: Path, hub: str) -> None:
    """A package called torch that is first on the path is what a run would import too."""
    packages = {"stages": "", "torch": "raise ImportError('libcudart.so.99 is missing')\n"}
    for name, text in packages.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    environment = {"HF_ENDPOINT": f"{hub}/503", "HF_TOKEN": SECRET, "PYTHONPATH": str(tmp_path)}
    done = kitchen(tmp_path, "doctor", **environment)
    assert done.returncode == 4
    assert "stages/__init__.py" in done.stdout
    assert "libcudart.so.99" in done.stdout
    assert f"{hub}/503 answers with status 503" in done.stdout
    assert "HF_TOKEN" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert "nothing is missing for recipes.sl_basic" not in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_hub_is_not_asked_offline(tmp_path: Path) -> None:
    done = kitchen(tmp_path, "doctor", HF_HUB_OFFLINE="1")
    assert "not checked: HF_HUB_OFFLINE is set" in done.stdout
    assert ("nothing is missing for recipes.sl_basic" in done.stdout) == (done.returncode == 0)


def test_a_hub_that_answers_is_reachable(monkeypatch: pytest.MonkeyPatch, hub: str) -> None:
    assert probe(monkeypatch, hub, 30.0) == (True, "answers")
    for status in (401, 404, 503):
        answer = probe(monkeypatch, f"{hub}/{status}", 30.0)
        assert answer == (True, f"answers with status {status}")


def test_a_hub_that_hangs_times_out(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    assert probe(monkeypatch, address(listener)) == (False, "no answer within 0.5 s")


def test_the_timeout_is_for_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    """Every byte arrives in time, but the answer never ends."""
    over = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Drip: ")
            while not over.wait(0.1):
                connection.sendall(b".")
            connection.sendall(b"\r\n\r\n")

    thread = threading.Thread(target=drip)
    thread.start()
    answer = probe(monkeypatch, address(listener))
    over.set()
    thread.join(10)
    assert answer == (False, "no answer within 0.5 s")


def test_a_refused_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = address(server)
    reachable, status = probe(monkeypatch, endpoint, 30.0)
    assert not reachable
    assert "[Errno" in status


def test_an_endpoint_that_is_no_url_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reachable, status = probe(monkeypatch, "hub.example")
    assert not reachable
    assert "HF_ENDPOINT" in status


def test_a_server_without_http_is_not_reachable(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    def greet() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"220 mail ready\r\n")

    threading.Thread(target=greet, daemon=True).start()
    reachable, status = probe(monkeypatch, address(listener), 30.0)
    assert not reachable
    assert "cannot be reached" in status


def test_the_endpoint_is_shown_without_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://cook:s3cr3t-s3cr3t@127.0.0.1:1")
    assert "s3cr3t" not in str(HubProbe(0.5).answer())


def test_free_space_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    assert disk(str(tmp_path / "not/yet"))["where"] == str(tmp_path / "not/yet")
    assert disk(str(tmp_path / "not/yet"))["free"] > 0


def test_an_extra_knows_its_install_command() -> None:
    [local] = [extra for extra in extras() if extra.name == "crucible-kitchen[local]"]
    assert {"torch", "peft"} <= set(local.packages)
    assert set(local.missing) <= set(local.packages)
    assert local.install_command == "pip install 'crucible-kitchen[local]'"

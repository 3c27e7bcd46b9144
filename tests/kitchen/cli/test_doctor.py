"""`kitchen doctor` tells what is here and what is missing, in time, and never a secret."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kitchen.cli.commands.surroundings import HubAsked, disk
from kitchen.config.extras import extras

SECRET = "hf_s3cr3t-s3cr3t"


class Answer(BaseHTTPRequestHandler):
    """200 at /, else the status that the path names."""

    def do_HEAD(self) -> None:
        self.send_response(int(self.path.strip("/") or 200))
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None: ...


@pytest.fixture
def answering() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """Takes connections; what it says to them is the test's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def asked(monkeypatch: pytest.MonkeyPatch, endpoint: str, seconds: float = 0.5) -> tuple[bool, str]:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    answer = HubAsked(seconds).answer()
    return answer["reachable"], answer["said"]


def doctor(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kitchen.cli", "doctor", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_it_tells_what_is_here(tmp_path: Path, answering: str) -> None:
    done = doctor(
        tmp_path,
        "--json",
        "--runs",
        "menus",
        HF_ENDPOINT=answering,
        HF_TOKEN=SECRET,
        TINKER_API_KEY="",
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
    assert {what: one["where"] for what, one in found["disk"].items()} == {
        "runs": str(tmp_path / "menus"),
        "converted models": str(tmp_path / "cache"),
        "Hugging Face": str(tmp_path / "hf/hub"),
    }
    assert found["keys"]["HF_TOKEN"] == "set"
    assert found["keys"]["TINKER_API_KEY"] == "not set"
    assert found["hub"] == {"endpoint": answering, "reachable": True, "said": "answers"}
    assert found["model"]["name"].startswith("packaged:")
    assert SECRET not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "it looks, and makes nothing"
    if find_spec("torch"):
        from adapters.fake.hub import FakeHub
        from adapters.peft.device import Machine
        from adapters.peft.settings import Settings

        machine = Machine(Settings(), FakeHub())
        assert found["machine"]["devices"][0].startswith(machine.device.type)
        assert f"torch.{found['machine']['dtype']}" == str(machine.dtype), (
            "that training takes by itself"
        )


def test_what_is_wrong_is_named_for_people(tmp_path: Path, answering: str) -> None:
    """A regular package named torch, first on the path, is what would be imported by a run too."""
    for name, text in (
        ("stages", ""),
        ("torch", "raise ImportError('libcudart.so.99 is missing')\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    done = doctor(
        tmp_path, HF_ENDPOINT=f"{answering}/503", HF_TOKEN=SECRET, PYTHONPATH=str(tmp_path)
    )
    assert done.returncode == 4
    assert "stages/__init__.py makes 'stages' a closed package" in done.stdout
    assert "libcudart.so.99 is missing" in done.stdout
    assert f"{answering}/503 answers with status 503" in done.stdout
    assert "HF_TOKEN" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert "nothing is missing for recipes.sl_basic" not in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_hub_that_is_not_to_be_asked_is_not(tmp_path: Path) -> None:
    done = doctor(tmp_path, HF_HUB_OFFLINE="1")
    assert "not asked: HF_HUB_OFFLINE is set" in done.stdout
    assert ("nothing is missing for recipes.sl_basic" in done.stdout) == (done.returncode == 0)


@pytest.mark.parametrize("status", [200, 401, 404, 503])
def test_a_hub_that_answers_is_reachable(
    monkeypatch: pytest.MonkeyPatch, answering: str, status: int
) -> None:
    said = "answers" if status == 200 else f"answers with status {status}"
    assert asked(monkeypatch, f"{answering}/{status}", 30.0) == (True, said)


def test_a_hub_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, listening: socket.socket
) -> None:
    assert asked(monkeypatch, address(listening)) == (False, "no answer within 0.5 s")


def test_the_time_is_that_of_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, listening: socket.socket
) -> None:
    """Each byte comes in time, the last one would not; a name server that hangs is cut off by the
    same clock.
    """
    over = threading.Event()

    def drip() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Drip: ")
            while not over.wait(0.1):
                connection.sendall(b".")
            connection.sendall(b"\r\n\r\n")

    thread = threading.Thread(target=drip)
    thread.start()
    told = asked(monkeypatch, address(listening))
    over.set()
    thread.join(10)
    assert told == (False, "no answer within 0.5 s")


def test_a_hub_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = address(server)
    reachable, said = asked(monkeypatch, endpoint, 30.0)
    assert not reachable
    assert "cannot be reached: [Errno" in said
    assert asked(monkeypatch, "hub.example") == (
        False,
        "HF_ENDPOINT is no address that begins with http:// or https://",
    )


def test_what_speaks_another_language_is_no_hub(
    monkeypatch: pytest.MonkeyPatch, listening: socket.socket
) -> None:
    def greet() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"220 mail ready\r\n")

    threading.Thread(target=greet, daemon=True).start()
    reachable, said = asked(monkeypatch, address(listening), 30.0)
    assert not reachable
    assert "cannot be reached" in said


def test_an_address_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://cook:s3cr3t-s3cr3t@127.0.0.1:1")
    assert "s3cr3t" not in str(HubAsked(0.5).answer())


def test_room_is_that_of_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    assert disk(str(tmp_path / "not/yet"))["where"] == str(tmp_path / "not/yet")
    assert disk(str(tmp_path / "not/yet"))["free"] > 0


def test_an_extra_is_known_with_its_command() -> None:
    [local] = [each for each in extras() if each.name == "crucible-kitchen[local]"]
    assert {"torch", "peft"} <= set(local.packages)
    assert set(local.missing) <= set(local.packages)
    assert local.install_command == "pip install 'crucible-kitchen[local]'"

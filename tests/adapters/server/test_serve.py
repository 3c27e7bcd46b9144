"""`kitchen serve` in a separate process, and the SDK's own tools against it."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("uvicorn")

import httpx
import uvicorn

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.local.hub import LocalHub
from adapters.server.serve import TinkerServer
from kitchen.backend.serving import deferred_signals
from kitchen.errors import BackendError, ConfigError
from tests.support.commands import output
from tests.support.polling import wait_until
from tests.support.tinker_server import KEY, MODELS

MODEL = "fake/bigram"
SERVE = ("serve", "--training", "fake", "--hub", "fake", "--model", MODEL, "--port", "0")


def start_server(
    folder: Path, *more: str, key: str | None = KEY, descriptors: int | None = None
) -> subprocess.Popen[str]:
    """Start a server; `descriptors` is its limit of open files and sockets."""

    def limit_descriptors() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    environment.pop("KITCHEN_SERVE_KEY", None)
    if key is not None:
        environment["KITCHEN_SERVE_KEY"] = key
    return subprocess.Popen(
        [sys.executable, "-m", "kitchen.cli", *SERVE, *more],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=limit_descriptors,
    )


def address(server: subprocess.Popen[str]) -> str:
    out: IO[str] | None = server.stdout
    assert out is not None
    while line := out.readline():
        if (found := re.search(r"serving the Tinker API at (http://[\d.]+:\d+)", line)) is not None:
            return found[1]
    raise AssertionError("the server ended without printing its address")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    server = start_server(tmp_path)
    yield address(server)
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == -signal.SIGTERM, "it closes everything, then ends with the signal"
    assert not list(tmp_path.rglob("_served/lease/*.json")), "it still holds the folder"


def tinker(url: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tinker.cli", *words],
        env={
            **os.environ,
            "TINKER_BASE_URL": url,
            "TINKER_API_KEY": KEY,
            "TINKER_TELEMETRY": "0",
            "COLUMNS": "300",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_sdk_and_its_command_line(url: str, tmp_path: Path) -> None:
    from tinker import RestClient, ServiceClient, types

    with ServiceClient(base_url=url, api_key=KEY) as service:
        training = service.create_lora_training_client(MODEL, rank=4, seed=1).result()
        prompt = types.ModelInput.from_ints([1, 2, 3])
        datum = types.Datum(
            model_input=prompt,
            loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
        )
        first = training.forward_backward([datum], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=0.01)).result()
        again = training.forward([datum], "cross_entropy").result()
        assert again.metrics["loss:sum"] < first.result().metrics["loss:sum"]
        path = training.save_state("kept", user_metadata={"who": "me"}).result().path
        sampler = training.save_weights_and_get_sampling_client().result()
        [drawn] = (
            sampler.sample(prompt, 1, types.SamplingParams(max_tokens=4, seed=1)).result().sequences
        )
        assert len(drawn.tokens) == len(drawn.logprobs or ()) <= 4
        assert (
            RestClient(base_url=url, api_key=KEY)
            .get_weights_info_by_tinker_path(path)
            .result()
            .lora_rank
            == 4
        )
        assert path in tinker(url, "checkpoint", "list")
        assert "kept" in tinker(url, "checkpoint", "info", path)
        assert training.model_id in tinker(url, "run", "list")
        tinker(url, "checkpoint", "download", path, "--output", str(tmp_path / "out"))
        assert any((tmp_path / "out").rglob("adapter_model.safetensors"))
        tinker(url, "checkpoint", "delete", "--yes", path)
        assert path not in tinker(url, "checkpoint", "list")


def test_signal_before_the_server_listens_stops_it() -> None:
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    with deferred_signals(server) as signals:
        signal.raise_signal(signal.SIGTERM)
    assert server.should_exit
    assert signals == [signal.SIGTERM]


def test_signal_during_startup_releases_the_lease() -> None:
    server_blobs = FakeBlobs()
    held: list[str] = []

    class Interrupted(TinkerServer):
        def app(self, *args: Any, **options: Any) -> Any:
            held.extend(server_blobs.list("_served/lease"))
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        next(
            Interrupted(FakeTraining(server_blobs), FakeHub(MODELS), server_blobs).serve(
                ["tiny"], {}, "127.0.0.1", 0
            )
        )
    assert end.value.code == 128 + signal.SIGTERM
    assert len(held) == 1
    assert not server_blobs.list("_served/lease")
    assert signal.getsignal(signal.SIGTERM) == before


def test_served_models_exist_and_names_are_unique() -> None:
    server_blobs = FakeBlobs()
    server = TinkerServer(FakeTraining(server_blobs), FakeHub(MODELS), server_blobs)
    with pytest.raises(BackendError, match="nobody"):
        server.app(["nobody"], {})
    with pytest.raises(ConfigError, match="--alias other=tiny"):
        server.app(["other"], {"other": "tiny"})


def test_sdk_opens_the_tokenizer_of_any_folder() -> None:
    """The SDK would cut the last part off a path with exactly two slashes."""
    from tinker.lib.public_interfaces.training_client import _load_tokenizer_from_model_info

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        pytest.importorskip("torch")
        from tests.support.tiny_model import tiny_model

        tiny_model(Path(folder))
        assert folder.count("/") == 2
        server_blobs = FakeBlobs()
        app = TinkerServer(FakeTraining(server_blobs), LocalHub(), server_blobs).app(
            [f"path:{folder}"], {}
        )
        [name] = [
            name for name in app.state.sessions.models.by_name if not name.startswith("path:")
        ]
        assert Path(name) == Path(folder) or Path(name).samefile(folder)
        assert _load_tokenizer_from_model_info(name).encode("a carrot")


def test_ctrl_c_stops_the_server(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    address(server)
    server.send_signal(signal.SIGINT)
    assert server.wait(30) in (0, 130)


def test_idle_clients_do_not_stop_the_server(tmp_path: Path) -> None:
    """Half of its descriptors are for connections, and the oldest idle one is closed for a new."""
    server = start_server(tmp_path, descriptors=64)
    url = address(server)
    host, port = url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(200)]
    for connection in idle[::2]:
        connection.sendall(b"POST /api/v1/create_session HTTP/1.1\r\n")
    for _ in range(3):
        answer = httpx.get(f"{url}/api/v1/get_server_capabilities", headers={"x-api-key": KEY})
        assert answer.status_code == 200
    server.send_signal(signal.SIGTERM)
    shown, _ = server.communicate(timeout=30)
    assert "more clients connect" in shown
    assert len(shown) < 2000
    for connection in idle:
        connection.close()


def test_waiting_clients_are_answered_when_it_stops(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    with httpx.Client(base_url=address(server), headers={"x-api-key": KEY}) as client:
        body: dict[str, Any] = {"tags": [], "user_metadata": None, "sdk_version": "0.38"}
        session = client.post("/api/v1/create_session", json=body).json()["session_id"]
        body = {"session_id": session, "model_seq_id": 0, "base_model": MODEL}
        model = client.post("/api/v1/create_model", json=body).json()["request_id"][:-2]
        body = {"model_id": model, "seq_id": 2, "path": "waits-for-request-1"}
        waiting = client.post("/api/v1/save_weights", json=body).json()
        with ThreadPoolExecutor() as thread:
            poll = thread.submit(client.post, "/api/v1/retrieve_future", json=waiting)
            wait_until(lambda: "kitchen_polls 1.0" in client.get("/metrics").text)
            server.send_signal(signal.SIGTERM)
            assert server.wait(10) == -signal.SIGTERM, "the poll would be held open for 20 s"
            assert poll.result().status_code == 408
            assert poll.result().json()["type"] == "try_again"


@pytest.mark.slow
def test_take_over_replaces_the_lease_of_another_host(tmp_path: Path) -> None:
    claim = tmp_path / "runs/_served/lease/theirs.json"
    claim.parent.mkdir(parents=True)
    claim.write_text(json.dumps({"host": "gone.example", "pid": 1, "born": "1"}))
    rejected = start_server(tmp_path)
    shown, _ = rejected.communicate(timeout=60)
    assert rejected.returncode == 2, shown
    assert "another `kitchen serve` (process 1 on gone.example) uses the folder" in shown
    assert f"{tmp_path}/runs, and" in shown
    assert "--take-over" in shown
    server = start_server(tmp_path, "--take-over")
    address(server)
    server.send_signal(signal.SIGINT)
    assert server.wait(30) in (0, 130)
    assert not claim.exists()


@pytest.mark.parametrize(
    "key, more, code, message",
    [
        (None, ("--host", "0.0.0.0"), 2, "KITCHEN_SERVE_KEY"),
        ("secret-of-mine", (), 2, "tml-"),
        ("tml-short", (), 2, "12"),
        (KEY, ("--alias", "nothing"), 2, "NAME=MODEL"),
        (KEY, ("--alias", "a=fake/bigram", "--alias", "a=fake/other"), 2, "already an alias"),
        (KEY, ("--model", "no such model"), 4, "no such model"),
    ],
)
def test_bad_options_are_rejected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    more: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KITCHEN_SERVE_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("KITCHEN_SERVE_KEY", key)
    shown = output(code, *SERVE, *more)
    assert message in shown
    assert "secret-of-mine" not in shown

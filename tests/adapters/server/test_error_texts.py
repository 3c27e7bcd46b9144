"""Texts of errors about long names and paths from requests, in both APIs."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from adapters.server.error_texts import LONGEST, error_text, public_text
from tests.adapters.server.openai.conftest import OpenAIClient
from tests.support.tinker_server import application

LONG = "a" * 10**6  # a search that is not linear takes hours on it
SHORT_ANSWER = LONGEST + 400  # characters


@pytest.fixture
def client() -> OpenAIClient:
    blobs = FakeBlobs()
    return OpenAIClient(application(FakeTraining(blobs), blobs))


@pytest.mark.parametrize("name", [LONG, "/a" * 5 * 10**5, "_served/" * 10**5, "://a:" * 10**5])
def test_texts_are_cut_before_they_are_searched(name: str) -> None:
    assert len(error_text(LookupError(f"{name} is unknown"))) < SHORT_ANSWER
    assert len(public_text(name, given=name)) < SHORT_ANSWER


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("path", ["/api/v1/files/", "/api/v1/", "/v1/", "/v1/models/"])
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_long_paths_get_short_answers(
    client: OpenAIClient, method: str, path: str, key: bool
) -> None:
    headers = {} if key else {"authorization": ""}
    answer = client.http.request(method, path + LONG[:60_000], headers=headers)
    is_file = path.startswith("/api/v1/files/") and method == "GET"
    assert answer.status_code in ({404, 405} if key or is_file else {401})
    assert len(answer.text) < SHORT_ANSWER


def test_every_path_needs_the_key() -> None:
    blobs = FakeBlobs()
    app = application(FakeTraining(blobs), blobs)
    http = OpenAIClient(app, key="wrong").http
    open_paths = []
    for route in app.routes:
        for method in sorted({*route.methods, "OPTIONS"}):
            path = re.sub(r"{[^}]*}", "x", route.path)
            if http.request(method, path).status_code != 401:
                open_paths.append((method, path))
    file = "/api/v1/files/x/x/x/x"
    assert {path for _, path in open_paths} == {"/healthz", "/api/v1/healthz", file}
    assert sorted(method for method, path in open_paths if path == file) == ["GET", "HEAD"]


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("completions", {"model": LONG, "prompt": "x"}, 404),
        ("completions", {"model": f"run:{LONG}", "prompt": "x"}, 404),
        ("completions", {"model": f"tinker://{LONG}", "prompt": "x"}, 404),
        ("completions", {"model": "tiny", "prompt": "x", LONG: 1}, 400),
        ("chat/completions", {"model": "tiny", "messages": [{"role": LONG}]}, 400),
    ],
)
def test_long_names_get_short_answers(
    client: OpenAIClient, path: str, fields: dict[str, object], status: int
) -> None:
    answer = client.post(path, **fields)
    assert answer.status_code == status
    assert len(answer.text) < SHORT_ANSWER


@pytest.mark.parametrize("name", [LONG, f"tinker://{LONG}", f"/{LONG}"])
def test_long_names_get_short_answers_from_tinker(client: OpenAIClient, name: str) -> None:
    opening = {"tags": [], "user_metadata": None, "sdk_version": "0.38"}
    session = client.http.post("/api/v1/create_session", json=opening)
    body = {"session_id": session.json()["session_id"], "sampling_session_seq_id": 0}
    for field in ("base_model", "model_path"):
        answer = client.http.post("/api/v1/create_sampling_session", json={**body, field: name})
        assert 400 <= answer.status_code < 500
        assert len(answer.text) < SHORT_ANSWER


@pytest.mark.parametrize("name", ["/etc/passwd/x", "./data/x", "C:\\data\\x"])
def test_paths_from_a_request_are_repeated_as_they_are(client: OpenAIClient, name: str) -> None:
    answer = client.post("completions", model=name, prompt="x")
    assert answer.status_code == 404
    assert repr(name) in answer.json()["error"]["message"]
    message = f"{name!r} is not in /home/me/runs/x"
    assert public_text(message, given=name) == f"{name!r} is not in x"

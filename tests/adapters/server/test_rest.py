"""Runs, checkpoints and projects in the REST answers of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from tests.support.tinker_http import Client, connected
from tests.support.tinker_server import KEY


@pytest.fixture
def client() -> Iterator[Client]:
    with connected() as client:
        yield client


def session_in(client: Client, project: str | None) -> str:
    body = {"tags": [], "user_metadata": None, "sdk_version": "0.38", "project_id": project}
    return str(client.post("create_session", body).json()["session_id"])


def runs_of(client: Client, query: str) -> tuple[list[str], dict[str, int]]:
    answer = client.get(f"training_runs?{query}").json()
    return [run["training_run_id"] for run in answer["training_runs"]], answer["cursor"]


def test_runs_of_a_project_are_paged_by_themselves(client: Client) -> None:
    mine, other = session_in(client, "mine"), session_in(client, "other")
    made = []
    for number in range(3):
        made.append(client.model(mine, number))
        client.model(other, number)
    newest, middle, oldest = reversed(made)
    assert runs_of(client, "limit=2&offset=0&project_id=mine") == (
        [newest, middle],
        {"limit": 2, "offset": 0, "total_count": 3},
    )
    ids, cursor = runs_of(client, "limit=2&offset=2&access_scope=owned&project_id=mine")
    assert ids == [oldest]
    assert cursor["total_count"] == 3
    assert runs_of(client, "project_id=nobody's") == (
        [],
        {"limit": 20, "offset": 0, "total_count": 0},
    )
    assert runs_of(client, "limit=1")[1]["total_count"] == 6


def test_sessions_move_to_other_projects_with_their_runs(client: Client) -> None:
    session = session_in(client, None)
    model = client.model(session)
    assert runs_of(client, "project_id=archive")[0] == []
    url = f"/api/v1/sessions/{session}/project"
    moved = client.http.put(url, json={"project_id": "archive"}, headers={"x-api-key": KEY})
    assert moved.status_code == 204
    later = client.model(session, 1)
    assert runs_of(client, "project_id=archive")[0] == [later, model]
    empty = client.http.put(url, json={"project_id": ""}, headers={"x-api-key": KEY})
    assert empty.status_code == 422
    client.post(f"sessions/{session}/finish", {})
    with connected(client.blobs) as restarted:
        assert runs_of(restarted, "project_id=archive")[0] == [later, model]


def test_sizes_of_checkpoints_are_those_of_their_files(client: Client) -> None:
    model = client.model(client.session())
    client.save(model, 1, "with-optimiser")
    client.result(
        client.post("save_weights_for_sampler", {"model_id": model, "path": "s", "seq_id": 2})
    )
    sizes = {
        each["checkpoint_id"]: each["size_bytes"]
        for each in client.get(f"training_runs/{model}/checkpoints").json()["checkpoints"]
    }
    assert sizes == {
        "weights/with-optimiser": stored_bytes(client.blobs, "/weights/"),
        "sampler_weights/s": stored_bytes(client.blobs, "/sampler_weights/"),
    }
    run = client.get(f"training_runs/{model}").json()
    assert run["last_checkpoint"]["size_bytes"] == sizes["weights/with-optimiser"] > 1000


def stored_bytes(blobs: FakeBlobs, kind: str) -> int:
    names = [name for name in blobs.list("_served/kept/") if kind in name]
    assert names
    return sum(len(blobs.read(name) or b"") for name in names)


def test_base_model_must_be_that_of_the_weights(client: Client) -> None:
    session = client.session()
    path = client.save(client.model(session), 1, "kept")["path"]
    request: dict[str, Any] = {"session_id": session, "sampling_session_seq_id": 1}
    weights = {**request, "model_path": path}
    refused = client.post("create_sampling_session", {**weights, "base_model": "other"})
    assert refused.status_code == 400
    assert_names_both(refused.json()["detail"], path)
    assert client.post("create_sampling_session", {**weights, "base_model": "tiny"}).is_success
    assert client.post("create_sampling_session", weights).is_success


def test_weights_are_loaded_only_into_their_base_model(client: Client) -> None:
    session = client.session()
    path = client.save(client.model(session), 1, "kept")["path"]
    load = {"path": path, "optimizer": False}
    new = {**load, "session_id": session, "model_seq_id": 1}
    refused = client.result(client.post("load_weights", {**new, "base_model": "other"}))
    assert refused["category"] == "user"
    assert_names_both(refused["error"], path)
    other = client.model(session, 2, base_model="other")
    existing = {**load, "model_id": other, "seq_id": 1}
    assert_names_both(client.result(client.post("load_weights", existing))["error"], path)
    assert client.result(
        client.post("load_weights", {**new, "model_seq_id": 3, "base_model": "tiny"})
    ) == {"model_id": f"{session}:train:3", "path": path, "type": "load_weights"}


def assert_names_both(message: str, path: str) -> None:
    assert "ConfigError" in message
    assert "'other'" in message
    assert "'tiny'" in message
    assert path in message


@pytest.mark.parametrize(
    "path, words",
    [
        ("copy_weights", "copies of weights; create a model"),
        ("sessions/search", "list them with GET /api/v1/sessions"),
        ("create_custom_loss", "forward_backward_custom"),
        ("billing/usage/events", "bills"),
    ],
)
def test_absent_endpoints_say_what_is_missing(client: Client, path: str, words: str) -> None:
    answer = client.post(path, {})
    assert answer.status_code == 404
    assert f"POST /api/v1/{path} is not served here" in answer.json()["detail"]
    assert words in answer.json()["detail"]


def test_publishing_sets_a_flag_that_survives_a_restart(client: Client) -> None:
    model = client.model(client.session())
    client.save(model, 1, "kept")
    publish = f"training_runs/{model}/checkpoints/weights/kept/publish"

    def flags(server: Client) -> list[bool]:
        return [each["public"] for each in server.get("checkpoints").json()["checkpoints"]]

    assert flags(client) == [False]
    assert client.post(publish, b"").status_code == 204
    assert client.post(publish, b"").status_code == 204  # the SDK retries
    with connected(client.blobs) as restarted:
        assert flags(restarted) == [True]
        withdrawn = restarted.http.delete(f"/api/v1/{publish}", headers={"x-api-key": KEY})
        assert withdrawn.status_code == 204
        assert flags(restarted) == [False]
    assert client.post(publish.replace("kept", "absent"), b"").status_code == 404

"""The HTTP application: what it accepts, what it rejects, and how long it keeps things."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from starlette.testclient import TestClient

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from adapters.server.futures import FutureStore, Gone, QueueFull, RequestOrder, Result
from adapters.server.limits import Limits
from adapters.server.sampler_scheduler import SamplerScheduler
from kitchen.errors import RunFailed
from kitchen.ports.future import Pending
from kitchen.types import Lora, Trainable
from tests.support.clock import Clock
from tests.support.polling import wait_until
from tests.support.tinker_http import PROTOBUF, Client, connected
from tests.support.tinker_messages import forward_backward
from tests.support.tinker_server import KEY, application
from tests.support.virtual_time import advance, run_in_virtual_time


@pytest.fixture
def client() -> Iterator[Client]:
    with connected() as client:
        yield client


@pytest.mark.parametrize("key", ["", "tml-another", KEY[:-1], KEY + "x"])
def test_without_the_key_only_health_is_served(client: Client, key: str) -> None:
    assert client.post("create_session", {}, key=key).status_code == 401
    assert client.http.get("/metrics", headers={"x-api-key": key}).status_code == 401
    for path in ("/healthz", "/api/v1/healthz"):
        assert client.http.get(path).json() == {"status": "ok"}
    assert client.http.get("/metrics", headers={"x-api-key": "ключ".encode()}).status_code == 401


def test_long_requests_are_rejected() -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            yield b"y" * 50

    with connected(request_bytes=100) as client:
        assert client.post("forward_backward", b"x" * 101, **PROTOBUF).status_code == 413
        without_length = client.http.post(
            "/api/v1/forward_backward", content=chunks(), headers={"x-api-key": KEY, **PROTOBUF}
        )
        assert without_length.status_code == 413


@pytest.mark.parametrize(
    "method, path, status", [("POST", "/api/v1/abracadabra", 404), ("GET", "/api/v1/asample", 405)]
)
def test_unknown_paths_and_methods_are_named(
    client: Client, method: str, path: str, status: int
) -> None:
    request = client.http.request(method, path, headers={"x-api-key": KEY})
    assert request.status_code == status
    assert f"{method} {path}" in request.json()["detail"]


def test_client_must_fetch_results_before_it_sends_more() -> None:
    with connected(unfetched_results=2) as client:
        model, other = client.model(client.session()), client.model(client.session())
        first, second, third = (
            {"model_id": model, "path": f"at-{number}", "seq_id": number} for number in (1, 2, 3)
        )
        queued = [client.post("save_weights", body) for body in (first, second)]
        rejected = client.post("save_weights", third)
        assert rejected.status_code == 429
        assert "has not fetched" in rejected.json()["detail"]
        assert client.post("save_weights", second).status_code == 200, "it is queued already"
        assert "path" in client.save(other, 1, "another-model")
        assert [client.result(each)["path"] for each in queued] == [
            f"tinker://{model}/weights/at-{number}" for number in (1, 2)
        ]
        saved = client.result(client.post("save_weights", third))
        assert saved["path"] == f"tinker://{model}/weights/at-3"


def test_unknown_ids_and_ended_ids(client: Client) -> None:
    session = client.session()
    model = client.model(session)
    assert client.post("get_info", {"model_id": "x:train:0"}).status_code == 404
    assert client.post("get_info", {"model_id": model}).json()["model_name"] == "tiny"
    assert client.post("retrieve_future", {"request_id": f"{model}:99"}).status_code == 410
    assert client.post("session_heartbeat", {"session_id": "nobody"}).status_code == 410
    assert client.post("optim_step", {"model_id": model, "adam_params": {}}).status_code == 400
    assert (
        client.post(f"sessions/{session}/finish", {"reason": {"type": "success"}}).status_code
        == 204
    )
    assert client.post("get_info", {"model_id": model}).status_code == 410
    assert client.post("session_heartbeat", {"session_id": session}).status_code == 410


def test_repeated_requests_run_once_and_early_ones_wait(client: Client) -> None:
    model = client.model(client.session())
    early = client.post("save_weights", {"model_id": model, "path": "b", "seq_id": 2})
    assert not [name for name in client.blobs.list("_served/checkpoints") if "/b" in name]
    first = client.save(model, 1, "a")
    again = client.save(model, 1, "a")
    assert first == again == {"path": f"tinker://{model}/weights/a"}
    assert client.result(early) == {"path": f"tinker://{model}/weights/b"}
    assert "already" in client.save(model, 3, "a")["error"]


@pytest.mark.parametrize(
    "path, options, message",
    [
        (
            "save_weights_for_sampler",
            {"kind": "inflight", "sampling_session_seq_id": 0},
            "kind",
        ),
        (
            "save_weights_external",
            {"path": "out", "age_encryption_recipients": ["age1x"]},
            "age_encryption_recipients",
        ),
        ("save_weights", {"path": "a/b"}, "name of a checkpoint"),
        ("save_weights_for_sampler", {}, "sampling_session_seq_id"),
    ],
)
def test_rejected_request_does_not_block_the_next(
    client: Client, path: str, options: dict[str, Any], message: str
) -> None:
    model = client.model(client.session())
    assert (
        message
        in client.result(client.post(path, {"model_id": model, "seq_id": 1, **options}))["error"]
    )
    assert "path" in client.save(model, 2, "next")


def test_second_simultaneous_save_of_a_name_is_rejected(client: Client) -> None:
    model = client.model(client.session())
    request = [
        client.post("save_weights", {"model_id": model, "path": "same", "seq_id": number})
        for number in (2, 1)
    ]
    second, first = map(client.result, request)
    assert "path" in first
    assert "already" in second["error"]


def test_model_that_fails_to_open_leaves_nothing(client: Client) -> None:
    session = client.session()
    model = client.model(session)
    path = client.save(model, 1, "kept")["path"]
    for name in client.blobs.list("_served/kept"):
        client.blobs.write(name, b"spoiled")
    request = {"session_id": session, "model_seq_id": 5, "path": path, "optimizer": True}
    assert "CorruptCheckpoint" in client.result(client.post("load_weights", request))["error"]
    assert client.get(f"sessions/{session}").json()["training_run_ids"] == [model]
    assert "kitchen_models 1.0" in client.http.get("/metrics", headers={"x-api-key": KEY}).text


def test_sampler_keeps_weights_that_are_overwritten(client: Client) -> None:
    session = client.session()
    model = client.model(session)
    path = client.save(model, 1, "latest")["path"]
    sampler = client.post(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "model_path": path},
    ).json()["sampling_session_id"]
    before = client.result_bytes(sample(client, sampler, 0, prompt_logprobs=True))
    client.result_bytes(client.post("forward_backward", forward_backward(model, 2), **PROTOBUF))
    client.result(
        client.post(
            "optim_step", {"model_id": model, "seq_id": 3, "adam_params": {"learning_rate": 0.1}}
        )
    )
    over = client.post(
        "save_weights", {"model_id": model, "seq_id": 4, "path": "latest", "overwrite": True}
    )
    assert client.result(over)["path"] == path
    scheduler(client).close_samplers("")  # as if others had been opened since
    assert client.result_bytes(sample(client, sampler, 1, prompt_logprobs=True)) == before
    assert len(weights(client.blobs)) == 2
    client.post(f"sessions/{session}/finish", {})
    assert len(weights(client.blobs)) == 1, "nobody samples from the old ones any more"


def test_unrecorded_weights_are_deleted_by_the_next_server(client: Client) -> None:
    path = client.save(client.model(client.session()), 1, "kept")["path"]
    there = weights(client.blobs)
    training = FakeTraining(client.blobs)
    training.open("tiny", Lora(rank=4)).save("_served/kept/lost/1").result()
    assert len(weights(client.blobs)) == len(there) + 1
    again = Client(client.blobs)
    assert weights(again.blobs) == there
    assert again.post("weights_info", {"tinker_path": path}).status_code == 200


def weights(server_blobs: FakeBlobs) -> set[str]:
    """Return the names of all checkpoints of the server."""
    return {checkpoint.path for checkpoint in FakeTraining(server_blobs).checkpoints("_served/")}


class SlowSaves(FakeTraining):
    """A training client whose saves finish when the test says so."""

    def __init__(self, server_blobs: FakeBlobs) -> None:
        super().__init__(server_blobs)
        self.waiting: list[Callable[[], None]] = []

    def open(self, model: str, trainable: Trainable) -> Any:
        session: Any = super().open(model, trainable)
        for verb in ("save", "save_weights"):
            setattr(session, verb, partial(self._later, getattr(session, verb)))
        return session

    def _later(self, save: Callable[..., Any], name: str, **options: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        saved = save(name, **options).result()
        self.waiting.append(lambda: future.set_result(saved))
        return Pending(future)


@pytest.mark.parametrize(
    "verb, named",
    [
        ("save_weights", {"path": "kept"}),
        ("save_weights_for_sampler", {"path": "kept"}),
        ("save_weights_for_sampler", {"sampling_session_seq_id": 1}),
    ],
)
def test_save_finished_after_its_session_is_deleted(verb: str, named: dict[str, Any]) -> None:
    server_blobs = FakeBlobs()
    training = SlowSaves(server_blobs)
    client = Client(server_blobs, training)
    with client.http:
        session = client.session()
        assert (
            client.post(verb, {"model_id": client.model(session), "seq_id": 1, **named}).status_code
            == 200
        )
        wait_until(lambda: client.http.get("/healthz") and training.waiting)
        assert client.post(f"sessions/{session}/finish", {}).status_code == 204
        assert len(weights(server_blobs)) == ("path" in named)
        training.waiting[0]()
        wait_until(lambda: client.http.get("/healthz") and not weights(server_blobs))
        assert client.get("checkpoints").json()["checkpoints"] == []


def test_damaged_record_is_named(client: Client) -> None:
    client.save(client.model(client.session()), 1, "kept")
    [name] = client.blobs.list("_served/checkpoints")
    client.blobs.write(name, b'{"id": "cut')
    with pytest.raises(RunFailed, match=re.escape(name)):
        Client(client.blobs)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1:8000", "origin": "http://evil.example"},
        {"host": ""},
        {"host": "[::bad"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_without_a_key_browser_pages_are_rejected(headers: dict[str, str]) -> None:
    server_blobs = FakeBlobs()
    with TestClient(
        application(FakeTraining(server_blobs), server_blobs, key=None),
        base_url="http://127.0.0.1:8000",
    ) as http:
        assert http.post("/api/v1/create_session", json={}, headers=headers).status_code == 403
        for host in ("127.0.0.1", "localhost:8000", "[::1]:8000", "[::1]"):
            assert (
                http.get("/api/v1/get_server_capabilities", headers={"host": host}).status_code
                == 200
            )


@pytest.mark.parametrize("number", [None, 0, -1])
def test_bad_sequence_numbers_are_rejected(client: Client, number: int | None) -> None:
    model = client.model(client.session())
    step = client.post(
        "optim_step", {"model_id": model, "seq_id": number, "adam_params": {"learning_rate": 0.1}}
    )
    assert step.status_code == 400
    assert "seq_id" in step.text


def test_unsigned_file_urls_are_rejected(client: Client) -> None:
    for signature in ("x", "%C3%A9", ""):
        answer = client.http.get(
            f"/api/v1/files/a/weights/b/c?until=99999999999&signature={signature}"
        )
        assert answer.status_code == 404, answer.text


def test_least_recently_used_snapshot_is_deleted_first() -> None:
    with connected(snapshots_per_session=2) as client:
        model = client.model(client.session())
        first, second = client.snapshot(model, 1), client.snapshot(model, 2)
        client.result_bytes(sample(client, first, 0))
        client.snapshot(model, 3)
        assert sample(client, second, 0).status_code == 410
        assert client.result_bytes(sample(client, first, 1))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "", "a" * 200, "a\x00b", "ü"])
def test_names_with_path_parts_are_rejected(client: Client, name: str) -> None:
    model = client.model(client.session())
    before = client.blobs.list()
    assert "name of a checkpoint" in client.save(model, 1, name)["error"]
    assert client.blobs.list() == before
    for path in (
        f"tinker://{model}/weights/{name}",
        f"tinker://../weights/{name}",
        f"path:{name}",
        name,
    ):
        answer = client.post("weights_info", {"tinker_path": path})
        assert answer.status_code == 400, answer.text


def test_unsupported_options_are_named() -> None:
    with connected() as client:
        session = client.session()
        opening = {"session_id": session, "base_model": "tiny"}

        def create_error(**options: Any) -> str:
            return str(client.result(client.post("create_model", {**opening, **options}))["error"])

        assert "dimuon" in create_error(model_seq_id=0, optimizer_config={"type": "dimuon"})
        assert "did you mean 'tiny'" in create_error(model_seq_id=1, base_model="tinny")
        model = client.model(session, 2)
        step = {"type": "dimuon", "learning_rate": 0.1}
        body = {"model_id": model, "seq_id": 1, "optimizer_params": step}
        assert "dimuon" in client.result(client.post("optim_step", body))["error"]
        assert client.post("forward_backward", {"model_id": model}).status_code == 415
        too_large = {**opening, "model_seq_id": 3, "lora_config": {"rank": 100_000}}
        assert "rank is 100000" in client.post("create_model", too_large).text


@pytest.mark.parametrize("number", [-1, 2**63, 10**400])
def test_numbers_that_cannot_be_names_are_refused(client: Client, number: int) -> None:
    opening = {"session_id": client.session(), "base_model": "tiny"}
    body = {**opening, "sampling_session_seq_id": number}
    assert client.post("create_sampling_session", body).status_code == 400
    body = {**opening, "model_seq_id": number}
    assert client.post("create_model", body).status_code == 400
    body = {"model_id": client.model(opening["session_id"]), "seq_id": 1}
    body["sampling_session_seq_id"] = number
    answer = client.result(client.post("save_weights_for_sampler", body))
    assert answer["category"] == "user"


def test_models_and_samplers_per_session_are_limited() -> None:
    with connected(models_per_session=1, samplers_per_session=1) as client:
        session = client.session()
        client.model(session)
        body = {"session_id": session, "base_model": "tiny"}
        second = client.post("create_model", {**body, "model_seq_id": 1})
        assert "1 models" in client.result(second)["error"]
        created = [
            client.post("create_sampling_session", {**body, "sampling_session_seq_id": number})
            for number in (0, 1)
        ]
        assert [response.status_code for response in created] == [200, 400]


def test_checkpoints_outlive_the_server_and_models_do_not(client: Client) -> None:
    session = client.session()
    model = client.model(session)
    path = client.save(model, 1, "kept")["path"]
    other = Client(client.blobs)
    with other.http:
        assert other.post("get_info", {"model_id": model}).status_code == 410
        assert other.post("session_heartbeat", {"session_id": session}).status_code == 200
        assert [
            each["tinker_path"]
            for each in other.get(f"training_runs/{model}/checkpoints").json()["checkpoints"]
        ] == [path]
        loaded = other.result(
            other.post(
                "load_weights",
                {"session_id": session, "model_seq_id": 7, "path": path, "optimizer": True},
            )
        )
        assert loaded["model_id"] == f"{session}:train:7"


def test_expired_checkpoints_are_gone(client: Client) -> None:
    model = client.model(client.session())
    assert "ttl_seconds" in client.save(model, 1, "short", ttl_seconds=5)["error"]
    path = client.save(model, 2, "kept", ttl_seconds=3600)["path"]
    run, kind, name = path.removeprefix("tinker://").split("/")

    def set_ttl(seconds: Any) -> int:
        url = f"/api/v1/training_runs/{run}/checkpoints/{kind}/{name}/ttl"
        body = {"ttl_seconds": seconds}
        return int(client.http.put(url, json=body, headers={"x-api-key": KEY}).status_code)

    assert set_ttl(None) == 204
    assert client.get("checkpoints").json()["checkpoints"][0]["expires_at"] is None
    assert set_ttl("soon") == 422
    assert set_ttl(4000) == 204
    [blob] = [blob for blob in client.blobs.list("_served/checkpoints") if "/kept" in blob]
    record = json.loads(client.blobs.read(blob) or b"")
    client.blobs.write(blob, json.dumps({**record, "expires": "2020-01-01T00:00:00Z"}).encode())
    with connected(client.blobs) as later:
        assert later.get("checkpoints").json()["checkpoints"] == []
        assert later.post("weights_info", {"tinker_path": path}).status_code == 400


def test_silent_session_ends_with_its_snapshots() -> None:
    with connected(session_timeout=-1.0) as client:
        session = client.session()
        model = client.model(session)
        client.save(model, 1, "kept")
        sampler = client.snapshot(model, 2)
        assert client.get(f"samplers/{sampler}").json()["base_model"] == "tiny"
        client.http.app.state.sessions.sweep()  # type: ignore[attr-defined]
        assert client.post("session_heartbeat", {"session_id": session}).status_code == 410
        assert client.get(f"samplers/{sampler}").status_code == 404
        assert len(client.get("checkpoints").json()["checkpoints"]) == 1
        assert not client.blobs.list("_served/own")


def sampling_session(client: Client, session: str, number: int) -> str:
    body = {"session_id": session, "sampling_session_seq_id": number, "base_model": "tiny"}
    response = client.post("create_sampling_session", body)
    return str(response.json()["sampling_session_id"])


def scheduler(client: Client) -> SamplerScheduler:
    app: Any = client.http.app
    sampler_scheduler: SamplerScheduler = app.state.api.sampling.scheduler
    return sampler_scheduler


def sample(client: Client, sampler: str, number: int, **more: Any) -> Any:
    return client.post(
        "asample",
        {
            "sampling_session_id": sampler,
            "seq_id": number,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
            "sampling_params": {"max_tokens": 3, "seed": 1},
            **more,
        },
    )


def test_samplers_are_closed_and_reopened() -> None:
    with connected(open_samplers=2) as client:
        model = client.model(client.session())
        samplers = [client.snapshot(model, number) for number in range(1, 5)]
        first = [client.result_bytes(sample(client, each, 0)) for each in samplers]
        assert len(scheduler(client).open_weights) == 2
        assert [client.result_bytes(sample(client, each, 1)) for each in samplers] == first


def test_sessions_share_the_sampler_of_one_model(client: Client) -> None:
    samplers = [sampling_session(client, client.session(), number) for number in range(3)]
    answers = {client.result_bytes(sample(client, each, 0)) for each in samplers}
    assert len(answers) == 1
    assert scheduler(client).open_weights == ["tiny"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": 10**6}, "num_samples"),
        ({"seq_id": None}, "seq_id"),
        ({"sampling_session_id": "nobody:sample:0"}, "no sampling session"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": ["a"]}]}}, "prompt"),
    ],
)
def test_malformed_sampling_requests_are_rejected(
    client: Client, options: dict[str, Any], message: str
) -> None:
    answer = sample(client, sampling_session(client, client.session(), 0), 0, **options)
    assert 400 <= answer.status_code < 500
    assert message in answer.text


@pytest.mark.parametrize(
    "options, message",
    [
        ({"topk_sample_logprobs": 10**7}, "topk_sample_logprobs"),
        ({"prompt_alt_tokens_k": 2}, "prompt_alt_tokens_k"),
        ({"sampling_params": {"max_tokens": 2, "stop": []}}, "stop"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 9}, "last_n"),
        (
            {
                "topk_prompt_logprobs": 10**7,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            },
            "topk",
        ),
        ({"prompt": {"chunks": []}}, "prompt"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [-4]}]}}, "-4"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2**63]}]}}, f"{2**63}"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [-(2**70)]}]}}, f"{-(2**70)}"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 2**63}, "last_n"),
        ({"topk_prompt_logprobs": 2**63}, "topk"),
        ({"sampling_params": {"max_tokens": -(2**63)}}, "max_tokens"),
    ],
)
def test_unsupported_sampling_requests_fail(
    client: Client, options: dict[str, Any], message: str
) -> None:
    answer = client.result(
        sample(client, sampling_session(client, client.session(), 0), 0, **options)
    )
    assert message in answer["error"]
    assert answer["category"] == "user"


GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
PATHS = (
    "create_session",
    "create_model",
    "load_weights",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "get_info",
    "retrieve_future",
    "create_sampling_session",
    "asample",
    "weights_info",
    "session_heartbeat",
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(PATHS),
    body=GARBAGE.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=60),
)
def test_garbage_is_rejected_and_breaks_nothing(client: Client, path: str, body: bytes) -> None:
    answer = client.post(path, body)
    assert 400 <= answer.status_code < 500, (path, body, answer.text)
    assert client.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("examples", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_corrupted_messages_change_no_other_model(client: Client, examples: int) -> None:
    """Bytes of a real message of another session with some of them changed, cut or doubled."""
    other = client.model(client.session())
    numbers = count(1)
    before = client.scores(other, next(numbers))

    @settings(max_examples=examples)
    @given(data=st.data())
    def corrupt_and_compare(data: Any) -> None:
        session = client.session()
        body = bytearray(forward_backward(client.model(session), 1))
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, max(len(body) - 1, 0)))
            match data.draw(st.sampled_from(["change", "cut", "double"])):
                case "change":
                    body[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
                case "cut":
                    del body[at : at + data.draw(st.integers(1, 30))]
                case _:
                    body[at:at] = body[at : at + data.draw(st.integers(1, 30))]
        answer = client.post("forward_backward", bytes(body), **PROTOBUF)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500
        assert client.scores(other, next(numbers)) == before
        client.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})

    corrupt_and_compare()


def test_metrics_count_models_and_requests(client: Client) -> None:
    client.model(client.session())
    shown = client.http.get("/metrics", headers={"x-api-key": KEY}).text
    assert "kitchen_models 1.0" in shown
    assert 'kitchen_requests_total{path="/api/v1/create_model",status="200"} 1.0' in shown


def test_file_urls_are_valid_only_as_signed(client: Client) -> None:
    model = client.model(client.session())
    request = {"model_id": model, "path": "out", "seq_id": 1}
    path = client.result(client.post("save_weights_external", request))["path"]
    run, kind, name = path.removeprefix("tinker://").split("/")
    urls = client.get(
        f"training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls"
    ).json()["urls"]
    assert urls
    for url in urls.values():
        assert client.http.get(url).status_code == 200
        assert client.http.get(url[:-1] + ("0" if url[-1] != "0" else "1")).status_code == 404
        assert client.http.get(url.split("?")[0]).status_code == 404
        assert client.http.get(url.replace("until=", "until=9")).status_code == 404


def test_fetched_results_are_dropped_after_a_while() -> None:
    async def work() -> Result:
        return Result({"it": "is"})

    async def scene() -> None:
        clock = Clock()
        store = FutureStore(Limits(fetched_result_ttl=10, unclaimed_result_ttl=100), clock)
        store.add("a", "me", work(), queue="mine")
        store.add("b", "me", work(), queue="mine")
        pending = asyncio.get_running_loop().create_future()  # never resolved
        store.add("c", "me", pending, queue="mine")
        assert await store.fetch("a", 1.0) == await store.fetch("a", 1.0) == Result({"it": "is"})
        store.sweep()
        assert len(store) == 3
        clock.now += 11
        store.sweep()
        assert len(store) == 2
        with pytest.raises(Gone):
            await store.fetch("a", 1.0)
        polled = asyncio.ensure_future(store.fetch("c", 5.0))
        await advance(1.0)
        store.end_session("me")
        with pytest.raises(Gone, match="ended"):
            await polled
        store.sweep()
        assert len(store) == 0

    run_in_virtual_time(scene())


def test_unclaimed_results_are_dropped_later() -> None:
    async def work() -> Result:
        return Result({"it": "is"})

    async def scene() -> None:
        clock = Clock()
        store = FutureStore(Limits(unfetched_results=2, unclaimed_result_ttl=60), clock)
        for name in "ab":
            store.add(name, "me", work(), queue="mine")
        await advance(1.0)
        store.sweep()
        with pytest.raises(QueueFull, match="has not fetched"):
            store.check_room("mine")
        clock.now += 61
        store.sweep()
        assert len(store) == 0
        store.check_room("mine")

    run_in_virtual_time(scene())


def test_pending_bytes_of_a_queue_are_limited() -> None:
    async def scene() -> None:
        store, go = FutureStore(Limits(pending_bytes=10)), asyncio.Event()

        async def work() -> Result:
            await go.wait()
            return Result({"it": "is"})

        store.add("a", "me", work(), queue="mine", size=10)
        store.check_room("yours")
        with pytest.raises(QueueFull, match="pending"):
            store.check_room("mine")
        go.set()
        await store.fetch("a", 1.0)
        store.check_room("mine")

    run_in_virtual_time(scene())


def test_requests_start_in_order_and_only_once() -> None:
    order, started = RequestOrder(), list[int]()
    for number in (3, 2):
        order.submit(number, lambda number=number: started.append(number))  # type: ignore[misc]
    assert started == []
    order.submit(1, lambda: started.append(1))
    assert started == [1, 2, 3]
    with pytest.raises(Gone, match="too late"):
        order.submit(2, lambda: started.append(2))

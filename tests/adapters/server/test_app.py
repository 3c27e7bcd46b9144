"""What the server lets in, what it refuses, and what it does with what it has."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from starlette.testclient import TestClient

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from adapters.server import app as serving
from adapters.server import lines, promises, sampling, sessions, training
from adapters.server.promises import Answer, Full, Gone, Promises, Turns
from kitchen.errors import RunFailed
from kitchen.ports.future import Pending
from kitchen.types import Lora
from tests.adapters.server.messages import forward_backward
from tests.adapters.tinker.serving import KEY, application

PROTOBUF = {"content-type": "application/x-protobuf"}


class Talk:
    """A client by hand."""

    def __init__(self, kept: FakeBlobs, training: FakeTraining | None = None) -> None:
        self.memoize = kept
        self.http = TestClient(
            application(training or FakeTraining(kept), kept),
            raise_server_exceptions=True,
            base_url="http://127.0.0.1:8000",
        )

    def post(self, path: str, body: Any, key: str = KEY, **headers: str) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(
            f"/api/v1/{path}", content=content, headers={"x-api-key": key, **headers}
        )

    def get(self, path: str) -> Any:
        return self.http.get(f"/api/v1/{path}", headers={"x-api-key": KEY})

    def answer(self, asked: Any) -> Any:
        assert asked.status_code == 200, asked.text
        return self.post("retrieve_future", {"request_id": asked.json()["request_id"]}).json()

    def answer_bytes(self, asked: Any) -> bytes:
        assert asked.status_code == 200, asked.text
        found: bytes = self.post(
            "retrieve_future", {"request_id": asked.json()["request_id"]}
        ).content
        return found

    def scores(self, model: str, number: int) -> bytes:
        """What a forward pass says, which moves nothing."""
        return self.answer_bytes(
            self.post("forward_backward", forward_backward(model, number, only=True), **PROTOBUF)
        )

    def session(self) -> str:
        made: str = self.post(
            "create_session", {"tags": [], "user_metadata": {"who": "me"}, "sdk_version": "0.38"}
        ).json()["session_id"]
        return made

    def model(self, session: str, number: int = 0, **more: Any) -> str:
        asked = {
            "session_id": session,
            "model_seq_id": number,
            "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1},
            **more,
        }
        return str(self.answer(self.post("create_model", asked)).get("model_id"))

    def snapshot(self, model: str, number: int) -> str:
        asked = {"model_id": model, "seq_id": number, "sampling_session_seq_id": number}
        return str(self.answer(self.post("save_weights_for_sampler", asked))["sampling_session_id"])

    def save(self, model: str, number: int, name: str | None, **more: Any) -> Any:
        return self.answer(
            self.post("save_weights", {"model_id": model, "path": name, "seq_id": number, **more})
        )


@pytest.fixture
def talk() -> Iterator[Talk]:
    made = Talk(FakeBlobs())
    with made.http:
        yield made


@pytest.mark.parametrize("key", ["", "tml-another", KEY[:-1], KEY + "x"])
def test_without_the_key_there_is_health_alone(talk: Talk, key: str) -> None:
    assert talk.post("create_session", {}, key=key).status_code == 401
    assert talk.http.get("/metrics", headers={"x-api-key": key}).status_code == 401
    for path in ("/healthz", "/api/v1/healthz"):
        assert talk.http.get(path).json() == {"status": "ok"}
    assert talk.http.get("/metrics", headers={"x-api-key": "ключ".encode()}).status_code == 401


def test_what_is_longer_than_allowed_is_refused(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LONGEST", 100)
    assert talk.post("forward_backward", b"x" * 101, **PROTOBUF).status_code == 413

    def unannounced() -> Iterator[bytes]:
        for _ in range(3):
            yield b"y" * 50

    asked = talk.http.post(
        "/api/v1/forward_backward", content=unannounced(), headers={"x-api-key": KEY, **PROTOBUF}
    )
    assert asked.status_code == 413


@pytest.mark.parametrize(
    "method, path, status", [("POST", "/api/v1/abracadabra", 404), ("GET", "/api/v1/asample", 405)]
)
def test_what_is_no_request_of_the_api_is_named(
    talk: Talk, method: str, path: str, status: int
) -> None:
    asked = talk.http.request(method, path, headers={"x-api-key": KEY})
    assert asked.status_code == status
    assert f"{method} {path}" in asked.json()["detail"]


def test_a_client_that_fetches_nothing_is_told_to_come_back_later(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promises, "UNFETCHED", 2)
    model, other = talk.model(talk.session()), talk.model(talk.session())
    first, second, third = (
        {"model_id": model, "path": f"at-{number}", "seq_id": number} for number in (1, 2, 3)
    )
    left = [talk.post("save_weights", each) for each in (first, second)]
    refused = talk.post("save_weights", third)
    assert refused.status_code == 429
    assert "did not fetch" in refused.json()["detail"]
    assert talk.post("save_weights", second).status_code == 200, "it is here already"
    assert "path" in talk.save(other, 1, "not-its-fault")
    assert [talk.answer(each)["path"] for each in left] == [
        f"tinker://{model}/weights/at-{n}" for n in (1, 2)
    ]
    assert talk.answer(talk.post("save_weights", third))["path"] == f"tinker://{model}/weights/at-3"


def test_ids_that_never_were_and_ids_that_are_over(talk: Talk) -> None:
    session = talk.session()
    model = talk.model(session)
    assert talk.post("get_info", {"model_id": "x:train:0"}).status_code == 404
    assert talk.post("get_info", {"model_id": model}).json()["model_name"] == "tiny"
    assert talk.post("retrieve_future", {"request_id": f"{model}:99"}).status_code == 410
    assert talk.post("session_heartbeat", {"session_id": "nobody"}).status_code == 410
    assert talk.post("optim_step", {"model_id": model, "adam_params": {}}).status_code == 400
    assert (
        talk.post(f"sessions/{session}/finish", {"reason": {"type": "success"}}).status_code == 204
    )
    assert talk.post("get_info", {"model_id": model}).status_code == 410
    assert talk.post("session_heartbeat", {"session_id": session}).status_code == 410


def test_a_request_that_comes_again_is_done_once_and_one_that_comes_early_waits(talk: Talk) -> None:
    model = talk.model(talk.session())
    early = talk.post("save_weights", {"model_id": model, "path": "b", "seq_id": 2})
    assert not [name for name in talk.kept.list("_served/checkpoints") if "/b" in name]
    first = talk.save(model, 1, "a")
    again = talk.save(model, 1, "a")
    assert first == again == {"path": f"tinker://{model}/weights/a"}
    assert talk.answer(early) == {"path": f"tinker://{model}/weights/b"}
    assert "already" in talk.save(model, 3, "a")["error"]


@pytest.mark.parametrize(
    "path, asked, why",
    [
        (
            "save_weights_for_sampler",
            {"kind": "inflight", "sampling_session_seq_id": 0},
            "snapshots alone",
        ),
        (
            "save_weights_external",
            {"path": "out", "age_encryption_recipients": ["age1x"]},
            "encrypts nothing",
        ),
        ("save_weights", {"path": "a/b"}, "cannot be the name"),
        ("save_weights_for_sampler", {}, "one of them names the weights"),
    ],
)
def test_a_request_that_is_refused_has_had_its_turn(
    talk: Talk, path: str, asked: dict[str, Any], why: str
) -> None:
    model = talk.model(talk.session())
    assert why in talk.answer(talk.post(path, {"model_id": model, "seq_id": 1, **asked}))["error"]
    assert "path" in talk.save(model, 2, "next")


def test_of_two_saves_under_one_name_at_once_the_second_is_refused(talk: Talk) -> None:
    model = talk.model(talk.session())
    asked = [
        talk.post("save_weights", {"model_id": model, "path": "same", "seq_id": number})
        for number in (2, 1)
    ]
    second, first = map(talk.answer, asked)
    assert "path" in first
    assert "already" in second["error"]


def test_a_model_that_cannot_be_opened_leaves_nothing(talk: Talk) -> None:
    session = talk.session()
    model = talk.model(session)
    path = talk.save(model, 1, "kept")["path"]
    for name in talk.kept.list("_served/kept"):
        talk.kept.write(name, b"spoiled")
    asked = {"session_id": session, "model_seq_id": 5, "path": path, "optimizer": True}
    assert "CorruptCheckpoint" in talk.answer(talk.post("load_weights", asked))["error"]
    assert talk.get(f"sessions/{session}").json()["training_run_ids"] == [model]
    assert "kitchen_models 1.0" in talk.http.get("/metrics", headers={"x-api-key": KEY}).text


def test_a_sampler_stands_still_though_its_weights_are_overwritten(talk: Talk) -> None:
    session = talk.session()
    model = talk.model(session)
    path = talk.save(model, 1, "latest")["path"]
    sampler = talk.post(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "model_path": path},
    ).json()["sampling_session_id"]
    before = talk.answer_bytes(sample(talk, sampler, 0, prompt_logprobs=True))
    talk.answer_bytes(talk.post("forward_backward", forward_backward(model, 2), **PROTOBUF))
    talk.answer(
        talk.post(
            "optim_step", {"model_id": model, "seq_id": 3, "adam_params": {"learning_rate": 0.1}}
        )
    )
    over = talk.post(
        "save_weights", {"model_id": model, "seq_id": 4, "path": "latest", "overwrite": True}
    )
    assert talk.answer(over)["path"] == path
    talk.http.app.state.api._sampling.lines.let_go("")  # type: ignore[attr-defined] # as if others had been asked since
    assert talk.answer_bytes(sample(talk, sampler, 1, prompt_logprobs=True)) == before
    assert len(weights(talk.kept)) == 2
    talk.post(f"sessions/{session}/finish", {})
    assert len(weights(talk.kept)) == 1, "nobody samples from the old ones any more"


def test_what_a_server_did_not_live_to_record_is_deleted_by_the_next(talk: Talk) -> None:
    path = talk.save(talk.model(talk.session()), 1, "kept")["path"]
    there = weights(talk.kept)
    training = FakeTraining(talk.kept)
    training.open("tiny", Lora(rank=4)).save("_served/kept/lost/1").result()
    assert len(weights(talk.kept)) == len(there) + 1
    again = Talk(talk.kept)
    assert weights(again.kept) == there
    assert again.post("weights_info", {"tinker_path": path}).status_code == 200


def weights(kept: FakeBlobs) -> set[str]:
    """The names of all that the training client keeps."""
    return {one.path for one in FakeTraining(kept).checkpoints("_served/")}


class Late(FakeTraining):
    """Its sessions save when they are told to."""

    def __init__(self, kept: FakeBlobs) -> None:
        super().__init__(kept)
        self.waiting: list[Callable[[], None]] = []

    def open(self, model: str, lora: Lora) -> Any:
        session: Any = super().open(model, lora)
        for verb in ("save", "save_weights"):
            setattr(session, verb, partial(self._later, getattr(session, verb)))
        return session

    def _later(self, save: Callable[..., Any], name: str, **how: Any) -> Any:
        work: concurrent.futures.Future[Any] = concurrent.futures.Future()
        work.set_running_or_notify_cancel()
        saved = save(name, **how).result()
        self.waiting.append(lambda: work.set_result(saved))
        return Pending(work)


@pytest.mark.parametrize(
    "verb, named",
    [
        ("save_weights", {"path": "kept"}),
        ("save_weights_for_sampler", {"path": "kept"}),
        ("save_weights_for_sampler", {"sampling_session_seq_id": 1}),
    ],
)
def test_what_is_saved_for_a_session_that_has_ended_is_deleted(
    verb: str, named: dict[str, Any]
) -> None:
    kept = FakeBlobs()
    training = Late(kept)
    talk = Talk(kept, training)
    with talk.http:
        session = talk.session()
        assert (
            talk.post(verb, {"model_id": talk.model(session), "seq_id": 1, **named}).status_code
            == 200
        )
        while not training.waiting:
            talk.http.get("/healthz")
        assert talk.post(f"sessions/{session}/finish", {}).status_code == 204
        assert len(weights(kept)) == ("path" in named)
        training.waiting[0]()
        deadline = time.monotonic() + 60
        while weights(kept):
            assert time.monotonic() < deadline
            talk.http.get("/healthz")
        assert talk.get("checkpoints").json()["checkpoints"] == []


def test_a_record_that_cannot_be_read_is_named(talk: Talk) -> None:
    talk.save(talk.model(talk.session()), 1, "kept")
    [name] = talk.kept.list("_served/checkpoints")
    talk.kept.write(name, b'{"id": "cut')
    with pytest.raises(RunFailed, match=re.escape(name)):
        Talk(talk.kept)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1:8000", "origin": "http://evil.example"},
        {"host": ""},
        {"host": "[::bad"},
    ],
)
def test_without_a_key_pages_of_a_browser_are_refused(headers: dict[str, str]) -> None:
    kept = FakeBlobs()
    with TestClient(
        application(FakeTraining(kept), kept, key=None), base_url="http://127.0.0.1:8000"
    ) as http:
        assert http.post("/api/v1/create_session", json={}, headers=headers).status_code == 403
        for host in ("127.0.0.1", "localhost:8000", "[::1]:8000", "[::1]"):
            assert (
                http.get("/api/v1/get_server_capabilities", headers={"host": host}).status_code
                == 200
            )


@pytest.mark.parametrize("number", [None, 0, -1])
def test_a_request_out_of_any_order_is_refused(talk: Talk, number: int | None) -> None:
    model = talk.model(talk.session())
    step = talk.post(
        "optim_step", {"model_id": model, "seq_id": number, "adam_params": {"learning_rate": 0.1}}
    )
    assert step.status_code == 400
    assert "seq_id" in step.text


def test_a_url_that_nobody_signed_is_refused_whatever_it_says(talk: Talk) -> None:
    for signature in ("x", "%C3%A9", ""):
        answer = talk.http.get(
            f"/api/v1/files/a/weights/b/c?until=99999999999&signature={signature}"
        )
        assert answer.status_code == 404, answer.text


def test_snapshots_that_nobody_uses_go_first(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SNAPSHOTS", 2)
    model = talk.model(talk.session())
    first, second = talk.snapshot(model, 1), talk.snapshot(model, 2)
    talk.answer_bytes(sample(talk, first, 0))
    talk.snapshot(model, 3)
    assert sample(talk, second, 0).status_code == 410
    assert talk.answer_bytes(sample(talk, first, 1))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "", "a" * 200, "a\x00b", "ü"])
def test_names_that_lead_elsewhere_are_refused(talk: Talk, name: str) -> None:
    model = talk.model(talk.session())
    before = talk.kept.list()
    assert "cannot be the name" in talk.save(model, 1, name)["error"]
    assert talk.kept.list() == before
    for path in (
        f"tinker://{model}/weights/{name}",
        f"tinker://../weights/{name}",
        f"path:{name}",
        name,
    ):
        answer = talk.post("weights_info", {"tinker_path": path})
        assert answer.status_code == 400, answer.text


def test_what_this_server_does_not_do_is_refused_by_name(talk: Talk) -> None:
    session = talk.session()
    with_dimuon = {
        "session_id": session,
        "model_seq_id": 0,
        "base_model": "tiny",
        "optimizer_config": {"type": "dimuon"},
    }
    assert "dimuon" in talk.answer(talk.post("create_model", with_dimuon))["error"]
    assert (
        "did you mean 'tiny'"
        in talk.answer(
            talk.post(
                "create_model", {"session_id": session, "model_seq_id": 1, "base_model": "tinny"}
            )
        )["error"]
    )
    model = talk.model(session, 2)
    asked = {
        "model_id": model,
        "seq_id": 1,
        "optimizer_params": {"type": "dimuon", "learning_rate": 0.1},
    }
    assert "dimuon" in talk.answer(talk.post("optim_step", asked))["error"]
    assert talk.post("forward_backward", {"model_id": model}).status_code == 415
    assert (
        "rank is 100000"
        in talk.post(
            "create_model",
            {
                "session_id": session,
                "model_seq_id": 3,
                "base_model": "tiny",
                "lora_config": {"rank": 100_000},
            },
        ).text
    )


def test_a_session_has_so_many_models_and_samplers(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MOST_MODELS", 1)
    monkeypatch.setattr(sampling, "MOST_SAMPLERS", 1)
    session = talk.session()
    talk.model(session)
    assert (
        "1 models"
        in talk.answer(
            talk.post(
                "create_model", {"session_id": session, "model_seq_id": 1, "base_model": "tiny"}
            )
        )["error"]
    )
    asked = {"session_id": session, "base_model": "tiny"}
    made = [
        talk.post("create_sampling_session", {**asked, "sampling_session_seq_id": number})
        for number in (0, 1)
    ]
    assert [each.status_code for each in made] == [200, 400]


def test_checkpoints_survive_the_server_and_models_do_not(talk: Talk) -> None:
    session = talk.session()
    model = talk.model(session)
    path = talk.save(model, 1, "kept")["path"]
    other = Talk(talk.kept)
    with other.http:
        assert other.post("get_info", {"model_id": model}).status_code == 410
        assert other.post("session_heartbeat", {"session_id": session}).status_code == 200
        assert [
            each["tinker_path"]
            for each in other.get(f"training_runs/{model}/checkpoints").json()["checkpoints"]
        ] == [path]
        loaded = other.answer(
            other.post(
                "load_weights",
                {"session_id": session, "model_seq_id": 7, "path": path, "optimizer": True},
            )
        )
        assert loaded["model_id"] == f"{session}:train:7"


def test_what_has_expired_is_gone(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    model = talk.model(talk.session())
    assert "ttl_seconds" in talk.save(model, 1, "short", ttl_seconds=5)["error"]
    path = talk.save(model, 2, "kept", ttl_seconds=3600)["path"]
    run, kind, name = path.removeprefix("tinker://").split("/")
    where = f"/api/v1/training_runs/{run}/checkpoints/{kind}/{name}"
    assert (
        talk.http.put(
            f"{where}/ttl", json={"ttl_seconds": None}, headers={"x-api-key": KEY}
        ).status_code
        == 204
    )
    assert talk.get("checkpoints").json()["checkpoints"][0]["expires_at"] is None
    assert (
        talk.http.put(
            f"{where}/ttl", json={"ttl_seconds": "soon"}, headers={"x-api-key": KEY}
        ).status_code
        == 422
    )
    assert (
        talk.http.put(
            f"{where}/ttl", json={"ttl_seconds": 4000}, headers={"x-api-key": KEY}
        ).status_code
        == 204
    )
    from datetime import timedelta

    from adapters.server import records

    later = records.now() + timedelta(seconds=5000)
    monkeypatch.setattr(records, "now", lambda: later)
    assert talk.get("checkpoints").json()["checkpoints"] == []
    assert talk.post("weights_info", {"tinker_path": path}).status_code == 400


def test_a_silent_client_ends_and_what_only_it_had_is_deleted(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = talk.session()
    model = talk.model(session)
    talk.save(model, 1, "kept")
    sampler = talk.snapshot(model, 2)
    assert talk.get(f"samplers/{sampler}").json()["base_model"] == "tiny"
    monkeypatch.setattr(sessions, "PATIENCE", -1.0)
    talk.http.app.state.sessions.sweep()  # type: ignore[attr-defined]
    assert talk.post("session_heartbeat", {"session_id": session}).status_code == 410
    assert talk.get(f"samplers/{sampler}").status_code == 404
    assert len(talk.get("checkpoints").json()["checkpoints"]) == 1
    assert not talk.kept.list("_served/own")


def sampling_session(talk: Talk, session: str, number: int) -> str:
    made: str = talk.post(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": number, "base_model": "tiny"},
    ).json()["sampling_session_id"]
    return made


def sample(talk: Talk, sampler: str, number: int, **more: Any) -> Any:
    return talk.post(
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


def test_samplers_that_nobody_asks_are_closed_and_opened_again(talk: Talk) -> None:
    model = talk.model(talk.session())
    all_ = [talk.snapshot(model, number) for number in range(1, 2 * lines.MOST_OPEN + 1)]
    before = [talk.answer_bytes(sample(talk, each, 0)) for each in all_]
    opened = talk.http.app.state.api._sampling.lines.open  # type: ignore[attr-defined]
    assert len(opened) == lines.MOST_OPEN
    assert [talk.answer_bytes(sample(talk, each, 1)) for each in all_] == before


def test_sessions_that_sample_from_one_model_share_it(talk: Talk) -> None:
    all_ = [sampling_session(talk, talk.session(), number) for number in range(3)]
    answers = {talk.answer_bytes(sample(talk, each, 0)) for each in all_}
    assert len(answers) == 1
    assert talk.http.app.state.api._sampling.lines.open == ["tiny"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "asked, why",
    [
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": 10**6}, "num_samples"),
        ({"seq_id": None}, "seq_id"),
        ({"sampling_session_id": "nobody:sample:0"}, "no sampling session"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": ["a"]}]}}, "prompt"),
    ],
)
def test_requests_to_sample_that_make_no_sense(talk: Talk, asked: dict[str, Any], why: str) -> None:
    answer = sample(talk, sampling_session(talk, talk.session(), 0), 0, **asked)
    assert 400 <= answer.status_code < 500
    assert why in answer.text


@pytest.mark.parametrize(
    "asked, why",
    [
        ({"topk_sample_logprobs": 3}, "topk_sample_logprobs"),
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
    ],
)
def test_requests_to_sample_that_are_refused(talk: Talk, asked: dict[str, Any], why: str) -> None:
    answer = talk.answer(sample(talk, sampling_session(talk, talk.session(), 0), 0, **asked))
    assert why in answer["error"]
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
def test_garbage_is_refused_and_breaks_nothing(talk: Talk, path: str, body: bytes) -> None:
    answer = talk.post(path, body)
    assert 400 <= answer.status_code < 500, (path, body, answer.text)
    assert talk.http.get("/healthz").status_code == 200


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_spoiled_messages_are_refused_and_move_no_weights(talk: Talk, data: Any) -> None:
    """Bytes of a real message of another session with some of them changed, cut or doubled."""
    mine, model = talk.model(talk.session()), talk.model(talk.session())
    before = talk.scores(mine, 1)
    body = bytearray(forward_backward(model, 1))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        match data.draw(st.sampled_from(["change", "cut", "double"])):
            case "change":
                body[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "cut":
                del body[at : at + data.draw(st.integers(1, 30))]
            case _:
                body[at:at] = body[at : at + data.draw(st.integers(1, 30))]
    answer = talk.post("forward_backward", bytes(body), **PROTOBUF)
    assert answer.status_code == 200 or 400 <= answer.status_code < 500
    assert talk.scores(mine, 2) == before


def test_metrics_count_what_there_is(talk: Talk) -> None:
    talk.model(talk.session())
    shown = talk.http.get("/metrics", headers={"x-api-key": KEY}).text
    assert "kitchen_models 1.0" in shown
    assert 'kitchen_requests_total{path="/api/v1/create_model",status="200"} 1.0' in shown


def test_urls_of_files_are_good_for_those_who_were_given_them(talk: Talk) -> None:
    model = talk.model(talk.session())
    asked = {"model_id": model, "path": "out", "seq_id": 1}
    path = talk.answer(talk.post("save_weights_external", asked))["path"]
    run, kind, name = path.removeprefix("tinker://").split("/")
    urls = talk.get(f"training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls").json()[
        "urls"
    ]
    for url in urls.values():
        assert talk.http.get(url).status_code == 200
        assert talk.http.get(url[:-1] + ("0" if url[-1] != "0" else "1")).status_code == 404
        assert talk.http.get(url.split("?")[0]).status_code == 404
        assert talk.http.get(url.replace("until=", "until=9")).status_code == 404


def test_promises_are_forgotten_a_while_after_they_were_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> Answer:
        return Answer({"it": "is"})

    async def both() -> None:
        made = Promises()
        for name, each in (("a", work()), ("b", work()), ("c", asyncio.sleep(60, Answer()))):
            made.make(name, "me", each, queue="mine")
        assert await made.fetch("a", 1.0) == await made.fetch("a", 1.0) == Answer({"it": "is"})
        made.sweep()
        assert len(made) == 3
        monkeypatch.setattr(promises, "KEPT", -1.0)
        await made.fetch("a", 1.0)
        made.sweep()
        assert len(made) == 2
        with pytest.raises(Gone):
            await made.fetch("a", 1.0)
        polled = asyncio.ensure_future(made.fetch("c", 5.0))
        await asyncio.sleep(0)
        made.end("me")
        with pytest.raises(Gone, match="ended"):
            await polled
        made.sweep()
        assert len(made) == 0

    asyncio.run(both())


def test_answers_that_nobody_comes_for_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "UNFETCHED", 2)

    async def work() -> Answer:
        return Answer({"it": "is"})

    async def both(seconds: float) -> None:
        monkeypatch.setattr(promises, "UNCLAIMED", seconds)
        made = Promises()
        for name in "ab":
            made.make(name, "me", work(), queue="mine")
        await asyncio.sleep(0.01)
        made.sweep()
        if seconds > 0:
            with pytest.raises(Full, match="did not fetch"):
                made.check_room("mine")
        else:
            assert len(made) == 0
            made.check_room("mine")

    asyncio.run(both(60.0))
    asyncio.run(both(-1.0))


def test_what_waits_has_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "HELD", 10)

    async def both() -> None:
        made, go = Promises(), asyncio.Event()

        async def work() -> Answer:
            await go.wait()
            return Answer({"it": "is"})

        made.make("a", "me", work(), queue="mine", size=10)
        made.check_room("yours")
        with pytest.raises(Full, match="that wait"):
            made.check_room("mine")
        go.set()
        await made.fetch("a", 1.0)
        made.check_room("mine")

    asyncio.run(both())


def test_turns_come_in_order_and_none_comes_twice() -> None:
    turns, begun = Turns(), list[int]()
    for number in (3, 2):
        turns.take(number, lambda number=number: begun.append(number))  # type: ignore[misc]
    assert begun == []
    turns.take(1, lambda: begun.append(1))
    assert begun == [1, 2, 3]
    with pytest.raises(Gone, match="too late"):
        turns.take(2, lambda: begun.append(2))

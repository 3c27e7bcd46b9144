"""Several servers behind one name: one trains, all sample, and one that dies loses nothing."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from starlette.testclient import TestClient

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.sampling import FakeSampler
from adapters.fake.training import FakeTraining
from adapters.server.serve import TinkerServer
from adapters.tinker.replicas import Copy, Replica, ReplicatedSampler
from adapters.tinker.service import Service
from kitchen.config.trust import NotTrusted, check_trusted_settings
from kitchen.errors import BackendError, ConfigError, SessionLost
from kitchen.ports.future import Future, Pending
from kitchen.ports.sampling import Sampler
from kitchen.types import Adam, Checkpoint, Datum, Lora, Sampled
from tests.support.incomplete_server import leaving_out
from tests.support.polling import wait_until
from tests.support.tinker_server import KEY, MODELS, ByteTinker, RunningServer, application

PROMPT = np.arange(1, 6)
DATUM = Datum(PROMPT, {"target_tokens": PROMPT + 1, "weights": np.ones(5, np.float32)})


class CountingTraining(FakeTraining):
    """The fake, which counts the requests that it samples for."""

    def __init__(self, blobs: FakeBlobs, *, answers: bool = True) -> None:
        super().__init__(blobs)
        self.requests = 0
        self._answers = answers

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        training, inner = self, super().sampler(weights)
        assert isinstance(inner, FakeSampler)

        class Counting(FakeSampler):
            def sample(self, prompt: Any, **options: Any) -> Future[Sequence[Sampled]]:
                training.requests += 1
                if not training._answers:
                    return Pending(concurrent.futures.Future())
                return inner.sample(prompt, **options)

        return Counting(inner.model)


class Servers:
    """A server that trains, and two replicas on the same store; the last never answers."""

    def __init__(self) -> None:
        self.blobs = FakeBlobs()
        self.trainings = [
            CountingTraining(self.blobs),
            CountingTraining(self.blobs),
            CountingTraining(self.blobs, answers=False),
        ]
        self.running = [
            RunningServer(
                TinkerServer(training, FakeHub(MODELS), self.blobs).app(
                    ["tiny"], {}, KEY, replica=number > 0
                )
            )
            for number, training in enumerate(self.trainings)
        ]
        self.urls = [server.url for server in self.running]

    def client(self, *numbers: int) -> ByteTinker:
        urls = [self.urls[number] for number in numbers]
        return ByteTinker(FakeBlobs(), urls, away=1.0, patience=1.0)


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    with ExitStack() as stack:
        for server in servers.running:
            stack.callback(server.stop)
        yield servers


def rollouts(sampler: Sampler, count: int = 12) -> list[Future[Sequence[Sampled]]]:
    return [sampler.sample(PROMPT, max_tokens=8, seed=seed) for seed in range(count)]


def tokens(futures: Sequence[Future[Sequence[Sampled]]]) -> list[list[int]]:
    return [future.result(60)[0].tokens.tolist() for future in futures]


def trained_sampler(client: ByteTinker) -> tuple[Any, Sampler]:
    session = client.open("tiny", Lora(rank=4, seed=1))
    session.forward_backward([DATUM])
    session.optim_step(Adam(0.1)).result()
    return session, session.snapshot().result()


def test_rollouts_of_a_snapshot_are_shared_by_load(servers: Servers) -> None:
    session, alone = trained_sampler(servers.client(0))
    expected = tokens(rollouts(alone))
    session.close()
    session, shared = trained_sampler(servers.client(0, 1))
    before = servers.trainings[0].requests
    assert tokens(rollouts(shared)) == expected
    assert servers.trainings[1].requests >= 4
    assert servers.trainings[0].requests - before >= 4
    session.close()


def test_requests_of_a_lost_replica_are_sent_again(
    servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    session, alone = trained_sampler(servers.client(0))
    expected = tokens(rollouts(alone))
    session.close()
    session, shared = trained_sampler(servers.client(0, 1, 2))
    futures = rollouts(shared)
    wait_until(lambda: servers.trainings[2].requests > 0)
    servers.running[2].stop()
    assert tokens(futures) == expected
    asked = servers.trainings[2].requests
    for sampler in (shared, session.snapshot().result()):
        assert tokens(rollouts(sampler)) == expected
    assert servers.trainings[2].requests == asked
    assert capsys.readouterr().err.count("a server is away") == 1
    session.close()


def test_replica_neither_trains_nor_changes_the_store(servers: Servers) -> None:
    session, _ = trained_sampler(servers.client(0))
    path = session.save_weights("kept").result()
    stored = {name: servers.blobs.read(name) for name in servers.blobs.list()}
    headers = {"x-api-key": KEY}
    with httpx.Client(base_url=f"{servers.urls[1]}/api/v1", headers=headers) as replica:
        [listed] = replica.get("/checkpoints").json()["checkpoints"]
        name = listed["tinker_path"].removeprefix("tinker://").replace("/", "/checkpoints/", 1)
        assert replica.delete(f"/training_runs/{name}").status_code == 400
        opening: dict[str, Any] = {"tags": [], "user_metadata": None, "sdk_version": "0.38"}
        mine = replica.post("/create_session", json=opening).json()["session_id"]
        body: dict[str, Any] = {"session_id": mine, "model_seq_id": 0, "base_model": "tiny"}
        queued = replica.post("/create_model", json=body).json()
        answer = replica.post("/retrieve_future", json=queued).json()
        assert "--replica" in answer["error"]
        body = {"session_id": mine, "sampling_session_seq_id": 0}
        body["model_path"] = listed["tinker_path"]
        assert replica.post("/create_sampling_session", json=body).status_code == 200
        assert replica.post(f"/sessions/{mine}/finish").status_code == 204
    assert {name: servers.blobs.read(name) for name in servers.blobs.list()} == stored
    assert path.path
    session.close()


@contextmanager
def first_and(replica: Any, blobs: FakeBlobs) -> Iterator[ByteTinker]:
    """Yield a client of a server that trains and of another one, given its application."""
    with ExitStack() as stack:
        urls = []
        for app in (application(FakeTraining(blobs), blobs), replica):
            running = RunningServer(app)
            stack.callback(running.stop)
            urls.append(running.url)
        yield ByteTinker(FakeBlobs(), urls)


def replica_app(blobs: FakeBlobs, model: str = "tiny") -> Any:
    return TinkerServer(FakeTraining(blobs), FakeHub(MODELS), blobs).app(
        [model], {}, KEY, replica=True
    )


@pytest.mark.parametrize(
    "replica, text",
    [
        ("other store", "does not share --runs with http"),
        ("malformed answers", "completion without log-prob"),
    ],
)
def test_errors_of_a_replica_are_not_hidden(
    replica: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs = FakeBlobs()
    app = replica_app(FakeBlobs())
    if replica == "malformed answers":
        app = leaving_out("sample logprobs")(replica_app(blobs))
    with first_and(app, blobs) as client:
        session, sampler = trained_sampler(client)
        with pytest.raises(BackendError, match=text) as raised:
            tokens(rollouts(sampler, 2))
        assert not isinstance(raised.value, SessionLost)
        session.close()
    assert "a server is away" not in capsys.readouterr().err


def test_every_server_is_asked_for_the_model() -> None:
    blobs = FakeBlobs()
    with first_and(replica_app(blobs), blobs) as client:
        assert client.online("tiny").count("serves tiny") == 2
    with pytest.raises(BackendError, match="does not answer"):
        client.online("tiny")
    with first_and(replica_app(blobs, "other"), blobs) as client:
        with pytest.raises(BackendError, match=r"does not serve 'tiny'"):
            client.online("tiny")


def test_error_of_opening_another_server_is_that_of_the_request() -> None:
    answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

    class Leaving(FakeSampler):
        def sample(self, prompt: Any, **options: Any) -> Future[Sequence[Sampled]]:
            return Pending(answer)

    def cannot_open() -> Sampler:
        raise RuntimeError("can't start new thread")

    fake = FakeTraining(FakeBlobs()).sampler("tiny")
    assert isinstance(fake, FakeSampler)
    opens = [cannot_open, lambda: Leaving(fake.model)]  # the last is asked first
    copies = [
        Copy(Replica(Service(f"http://{name}", "TINKER_API_KEY", "", {}, 1.0, 1.0)), open_sampler)
        for name, open_sampler in zip("ab", opens, strict=True)
    ]
    future = ReplicatedSampler(copies).sample(PROMPT, max_tokens=8)
    answer.set_exception(SessionLost("b is away"))
    with pytest.raises(RuntimeError, match="new thread"):
        future.result(10)


@pytest.mark.parametrize("urls", [[], ["http://a", "http://a"], ["http://a", ""]])
def test_bad_lists_of_servers_are_refused(urls: list[str]) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        ByteTinker(FakeBlobs(), urls)


def test_recorded_list_of_servers_needs_trust() -> None:
    settings = json.loads('{"training": {"base_url": ["http://127.0.0.1:1", "https://a.example"]}}')
    with pytest.raises(NotTrusted, match=r"training\.base_url"):
        check_trusted_settings("basil", settings, trust=False)


def test_replica_leaves_damaged_records_out_of_lists(capsys: pytest.CaptureFixture[str]) -> None:
    blobs = FakeBlobs()
    with first_and(replica_app(blobs), blobs) as client:
        session, _ = trained_sampler(client)
        session.save("kept").result()
        [kept] = [name for name in blobs.list("_served/checkpoints/") if "kept" in name]
        blobs.write(kept.replace("kept", "damaged"), b"{")
        with TestClient(replica_app(blobs), headers={"Authorization": f"Bearer {KEY}"}) as replica:
            answers = [replica.get("/v1/models") for _ in range(2)]
        session.close()
    assert [answer.status_code for answer in answers] == [200, 200]
    names = [model["id"] for model in answers[0].json()["data"]]
    assert any("/kept-" in name for name in names)
    assert not any("/damaged-" in name for name in names)
    assert capsys.readouterr().err.count("is left out of lists") == 1

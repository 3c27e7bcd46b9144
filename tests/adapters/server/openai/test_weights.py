"""Names of weights: runs, registered models and checkpoints of clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.artifacts.registry import add_version
from kitchen.artifacts.weights import find_weights
from kitchen.types import Checkpoint, Tokens
from tests.adapters.server.openai.conftest import OpenAIClient
from tests.adapters.server.test_app import Client
from tests.support.fake_runs import run_recipe
from tests.support.tinker_messages import forward_backward
from tests.support.tinker_server import KEY, application

PROTOBUF = {"content-type": "application/x-protobuf"}


@pytest.fixture(scope="module")
def blobs() -> FakeBlobs:
    """A store with a finished run, which is registered as a model."""
    blobs = FakeBlobs()
    run_recipe("sl_basic", FakeTraining(blobs), blobs)
    weights = find_weights("run:run@final", FakeTraining(blobs), blobs)
    assert isinstance(weights.source, Checkpoint)
    content = {"step": weights.source.step, "sha256": weights.source.sha256}
    add_version(
        blobs, "herb", "fresh", run="run", at="final", recipe="x", base_model="tiny", **content
    )
    return blobs


@pytest.fixture
def server(blobs: FakeBlobs) -> Iterator[OpenAIClient]:
    client = OpenAIClient(application(FakeTraining(blobs), blobs))
    with client.http:
        yield client


@pytest.mark.parametrize(
    "name", ["run:run", "run:run@final", "run", "model:herb", "model:herb@fresh"]
)
def test_runs_are_sampled_from(server: OpenAIClient, blobs: FakeBlobs, name: str) -> None:
    [choice] = server.chat("hello", model=name)["choices"]
    training = FakeTraining(blobs)
    sampler = training.sampler(find_weights("run:run@final", training, blobs).source)
    prompt = ByteTokenizer().render([{"role": "user", "content": "hello"}], answer=True)
    [sampled] = sampler.sample(prompt, max_tokens=8, seed=1).result()
    text = choice["message"]["content"]
    assert text == ByteTokenizer().decode(sampled.tokens)
    assert text != server.chat("hello")["choices"][0]["message"]["content"]


class OwnTokenizer(ByteTokenizer):
    """A tokenizer whose ids are those of the text in upper case."""

    def encode(self, text: str, *, special: bool = False) -> Tokens:
        return super().encode(text.upper(), special=special)


class WithTokenizers(FakeTraining):
    """A client whose checkpoints have their tokenizers."""

    def checkpoint_tokenizer(self, checkpoint: Checkpoint) -> ByteTokenizer:
        return OwnTokenizer()


def test_a_run_is_served_with_its_saved_tokenizer(blobs: FakeBlobs) -> None:
    client = OpenAIClient(application(WithTokenizers(blobs), blobs))
    with client.http:
        options = {"max_tokens": 1, "echo": True, "logprobs": 1}
        [of_run] = client.complete("two eggs", model="run:run", **options)["choices"]
        [of_base] = client.complete("two eggs", model="tiny", **options)["choices"]
    tokens = [choice["logprobs"]["tokens"][1] for choice in (of_run, of_base)]
    assert tokens == ["T", "t"]


def test_digest_of_a_run_is_that_of_its_weights(server: OpenAIClient, blobs: FakeBlobs) -> None:
    weights = find_weights("run:run@final", FakeTraining(blobs), blobs)
    assert isinstance(weights.source, Checkpoint)
    for name in ("run:run", "model:herb"):
        assert server.http.get(f"/v1/models/{name}").json()["sha256"] == weights.source.sha256


def test_a_run_of_a_folder_is_served_by_its_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of runs have absolute paths."""
    monkeypatch.chdir(tmp_path)
    blobs = FakeBlobs()
    run_recipe("sl_basic", FakeTraining(blobs), blobs, model="path:base")
    hub = FakeHub({"path:base": {}})
    client = OpenAIClient(application(FakeTraining(blobs), blobs, hub, ["path:base"]))
    with client.http:
        assert client.chat("hello", model="run:run")["choices"]
        listed = client.http.get("/v1/models").json()["data"]
    assert {model["id"] for model in listed} == {"path:base", "run:run"}


def test_runs_are_listed_with_their_base_model(server: OpenAIClient) -> None:
    listed = server.http.get("/v1/models").json()["data"]
    roots = {model["id"]: model["root"] for model in listed}
    assert roots == {"tiny": "tiny", "other": "other", "run:run": "tiny", "model:herb": "tiny"}


@pytest.mark.parametrize(
    ("blob", "name"),
    [
        ("_models/herb/versions/000001.json", "model:herb"),
        ("_models/herb/aliases.json", "model:herb@fresh"),
        ("run/run.json", "run:run"),
        ("run/checkpoints.jsonl", "run:run"),
    ],
)
def test_damaged_records_are_faults_of_the_server(blobs: FakeBlobs, blob: str, name: str) -> None:
    damaged = FakeBlobs()
    for one in blobs.list():
        damaged.write(one, blobs.read(one) or b"")
    damaged.write(blob, b'{"damaged"\n{}\n')
    client = OpenAIClient(application(FakeTraining(damaged), damaged))
    names = [model["id"] for model in client.http.get("/v1/models").json()["data"]]
    assert {"tiny", "other"} <= set(names) < {"tiny", "other", "run:run", "model:herb", name}
    answer = client.post("completions", model=name, prompt="x")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"


def test_base_model_of_a_run_must_be_served(blobs: FakeBlobs) -> None:
    client = OpenAIClient(application(FakeTraining(blobs), blobs, models=["other"]))
    answer = client.post("completions", model="run:run", prompt="x")
    assert answer.status_code == 404
    assert "--model tiny" in answer.json()["error"]["message"]
    assert [model["id"] for model in client.http.get("/v1/models").json()["data"]] == ["other"]


def test_checkpoints_of_clients_are_sampled_from() -> None:
    client = Client(FakeBlobs())
    with client.http:
        model = client.model(client.session())
        client.result_bytes(client.post("forward_backward", forward_backward(model, 1), **PROTOBUF))
        step = {"model_id": model, "seq_id": 2, "adam_params": {"learning_rate": 0.5}}
        client.result(client.post("optim_step", step))
        path = client.save(model, 3, "kept")["path"]
        body = {"model": path, "prompt": [1, 2, 3], "max_tokens": 0, "echo": True, "logprobs": 0}
        headers = {"authorization": f"Bearer {KEY}"}
        answer = client.http.post("/oai/api/v1/completions", json=body, headers=headers).json()
        untrained = {**body, "model": "tiny"}
        other = client.http.post("/v1/completions", json=untrained, headers=headers).json()
        assert answer["choices"][0]["logprobs"] != other["choices"][0]["logprobs"]
        names = client.http.get("/v1/models", headers=headers).json()["data"]
        assert path in [model["id"] for model in names]
        wrong = client.http.get(f"/v1/models/{path}x", headers=headers)
        assert wrong.status_code == 404
        assert path in wrong.json()["error"]["message"]

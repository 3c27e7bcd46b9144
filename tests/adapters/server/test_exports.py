"""Files of exported weights: their contents, encryption, and names that the world may see."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.local.blobs import LocalBlobs
from adapters.server.error_texts import error_text
from adapters.server.exports import public_base_name
from kitchen.errors import CorruptCheckpoint
from tests.support.one_model import OneModel
from tests.support.tinker_http import Client, connected
from tests.support.tinker_server import KEY

SSH = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsKLqeplhpW+uObz5dvMgjz1OxfM/XXUB+VHtZ6isGN"


@pytest.fixture
def client() -> Iterator[Client]:
    with connected() as client:
        yield client


def downloaded(client: Client, path: str) -> dict[str, bytes]:
    urls = client.file_urls(path).json()["urls"]
    return {name: client.http.get(url).content for name, url in urls.items()}


def test_each_recipient_decrypts_every_file(client: Client) -> None:
    pyrage = pytest.importorskip("pyrage")
    identities = [pyrage.x25519.Identity.generate() for _ in range(2)]
    recipients = [str(identity.to_public()) for identity in identities]
    model = client.model(client.session())
    plain = downloaded(client, client.export(model, 1)["path"])
    secret = {"path": "secret", "age_encryption_recipients": [*recipients, SSH]}
    encrypted = downloaded(client, client.export(model, 2, **secret)["path"])
    assert set(encrypted) == {f"{name}.age" for name in plain}
    for identity in identities:
        assert {
            name.removesuffix(".age"): pyrage.decrypt(data, [identity])
            for name, data in encrypted.items()
        } == plain
    stranger = pyrage.x25519.Identity.generate()
    with pytest.raises(pyrage.DecryptError):
        pyrage.decrypt(encrypted["adapter_config.json.age"], [stranger])


def test_encrypted_weights_are_stored_only_encrypted(client: Client) -> None:
    pyrage = pytest.importorskip("pyrage")
    recipient = str(pyrage.x25519.Identity.generate().to_public())
    session = client.session()
    model = client.model(session)
    path = client.export(model, 1, age_encryption_recipients=[recipient])["path"]
    stored = [name for name in client.blobs.list("_served/") if "/out/" in name]
    assert stored
    assert all(name.endswith(".age") for name in stored)
    [listed] = client.get("checkpoints").json()["checkpoints"]
    assert listed["size_bytes"] == sum(len(client.blobs.read(name)) for name in stored)
    request = {"session_id": session, "sampling_session_seq_id": 1, "model_path": path}
    assert "is encrypted" in client.post("create_sampling_session", request).json()["detail"]
    completion = client.http.post(
        "/v1/completions", json={"model": path, "prompt": "a"}, headers={"x-api-key": KEY}
    )
    assert completion.status_code == 400
    assert "is encrypted" in completion.json()["error"]["message"]
    client.blobs.write("_served/encrypted/a~train~0/external_weights/b/01234567/c.age", b"left")
    with connected(client.blobs) as restarted:
        assert downloaded(restarted, path).keys() == {name.split("/")[-1] for name in stored}
        url = f"/api/v1/training_runs/{path.removeprefix('tinker://')}"
        deleted = url.replace("/external_weights", "/checkpoints/external_weights")
        assert restarted.http.delete(deleted, headers={"x-api-key": KEY}).status_code == 204
    assert not client.blobs.list("_served/encrypted/")


@pytest.mark.parametrize(
    "recipients, words", [(["age1x"], "'age1x'"), (["me@here"], "begins with age1"), ([], "empty")]
)
def test_invalid_recipients_are_named(client: Client, recipients: list[str], words: str) -> None:
    pytest.importorskip("pyrage")
    model = client.model(client.session())
    refused = client.export(model, 1, age_encryption_recipients=recipients)
    assert refused["category"] == "user"
    assert words in refused["error"]
    assert client.export(model, 2)["path"].endswith("/out")


@pytest.mark.parametrize(
    "name, model, public",
    [
        ("Qwen/Qwen3-8B", "packaged:smollm2-135m-instruct", "Qwen/Qwen3-8B"),
        ("org/name:peft:262144", "org/name", "org/name:peft:262144"),
        ("/home/me/models/llama", "packaged:llama", "packaged:llama"),
        ("//models/llama", "path:/models/llama", "path:/models/llama"),
        ("path:/me/models/llama", "path:/me/models/llama", "path:/me/models/llama"),
    ],
)
def test_base_models_are_named_as_clients_do(name: str, model: str, public: str) -> None:
    assert public_base_name(name, model) == public


def test_texts_of_errors_name_what_the_client_knows() -> None:
    stored = "_served/kept/s~train~0/weights/kept/0123abcd/checkpoint.json is missing"
    for place in ("", "/data/runs/", "s3://bucket/"):
        assert error_text(CorruptCheckpoint(place + stored)) == (
            "CorruptCheckpoint: tinker://s:train:0/weights/kept/checkpoint.json is missing"
        )
    snapshot = CorruptCheckpoint("_served/own/s~sample~3/checkpoint.json is missing")
    assert "sampling session s:sample:3/checkpoint.json" in error_text(snapshot)
    unknown = LookupError("GET /api/v1/abc/d is not served; tinker://s:train:0/weights/x is")
    assert error_text(unknown) == f"LookupError: {unknown}"
    missing = FileNotFoundError(2, "No such file or directory", "/tmp/kitchen-server-x/weights")
    assert error_text(missing).endswith("No such file or directory: 'weights'")


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Client]:
    """A server of a tiny model on the local engine, with its records in a folder."""
    pytest.importorskip("peft")
    from adapters.peft.client import PeftTraining
    from tests.support.tiny_model import tiny_model

    hub = OneModel(tiny_model(tmp_path / "hub"))
    blobs = LocalBlobs(str(tmp_path / "store"))
    client = Client(blobs, PeftTraining(hub, blobs, device="cpu"), hub)
    with client.http:
        yield client


def test_no_error_names_a_folder_of_the_server(real: Client, tmp_path: Path) -> None:
    session = real.session()
    model = real.model(session)
    exported = real.export(model, 1)["path"]
    config = json.loads(downloaded(real, exported)["adapter_config.json"])
    assert (config["base_model_name_or_path"], config["revision"]) == ("tiny", None)
    kept = real.save(model, 2, "kept")["path"]
    errors = [*real_errors(real, session, kept, exported, "abc", f"{tmp_path}/hub2")]
    real.http.app.state.api.sampling.scheduler.close()  # so that weights are read again
    files = [file for file in (tmp_path / "store/_served/kept").rglob("*") if file.is_file()]
    for damage in (truncate, Path.unlink, Path.mkdir):
        for file in files:
            damage(file)
        errors += real_errors(real, session, kept, exported)
    shutil.rmtree(tmp_path / "hub")
    errors += real_errors(real, session, kept, exported, "tiny")
    (tmp_path / "store").rename(tmp_path / "aside")
    (tmp_path / "store").touch()
    errors += [*real_errors(real, session, kept, exported), real.save(model, 3, "more")["error"]]
    (tmp_path / "store").unlink()
    (tmp_path / "aside").rename(tmp_path / "store")
    assert "there are: other, tiny" in errors[0]
    assert len(errors) > 15
    inside = (str(tmp_path), tempfile.gettempdir(), str(Path.home()), "_served")
    assert [text for text in errors if any(folder in text for folder in inside)] == []


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


NUMBERS = count(1)


def real_errors(
    client: Client, session: str, kept: str, exported: str, *models: str
) -> Iterator[str]:
    """Yield the error of each request that reads weights, or creates one of these models."""
    for model in models:
        body = {"session_id": session, "model_seq_id": next(NUMBERS), "base_model": model}
        yield from error_of(client.result_of(client.post("create_model", body)))
    number = next(NUMBERS)
    ids = {"session_id": session, "model_seq_id": number}
    load = {**ids, "path": kept, "optimizer": True}
    yield from error_of(client.result_of(client.post("load_weights", load)))
    opened = client.post(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": number, "model_path": kept},
    )
    yield from error_of(opened)
    if opened.is_success:
        sample = {
            "sampling_session_id": opened.json()["sampling_session_id"],
            "seq_id": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]},
            "sampling_params": {"max_tokens": 1},
        }
        yield from error_of(client.result_of(client.post("asample", sample)))
    urls = client.file_urls(exported)
    yield from error_of(urls)
    for url in urls.json().get("urls", {}).values():
        yield from error_of(client.http.get(url))


def error_of(answer: Any) -> Iterator[str]:
    if answer.headers["content-type"] == "application/json":
        body = answer.json()
        text = body.get("error", body.get("detail"))
        if text is not None:
            yield text

"""The laws of every hub client: subclass `HubLaws`, say in `hub` how to make yours, and run pytest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kitchen.errors import BackendError
from kitchen.ports.hub import HubClient


class HubLaws:
    """A model is fetched as a folder, known by the digest of its weights; what is published can be fetched."""

    model = "fake/bigram"  # one that the hub has
    unknown_model = "no-such-owner/no-such-model"
    publishes = True  # whether it can take models

    def hub(self, tmp_path: Path) -> HubClient:
        raise NotImplementedError(
            f"{type(self).__name__} must say which adapter the laws are for:\n"
            "    model = ...  # the name of one that the hub has\n"
            "    def hub(self, tmp_path: Path) -> HubClient:\n"
            "        return MyHub(...)"
        )

    def published(self, tmp_path: Path) -> str:
        """A name to publish under; override it where names are places."""
        return "mine/tiny"

    @pytest.fixture
    def client(self, tmp_path: Path) -> HubClient:
        return self.hub(tmp_path)

    def test_a_fetched_model_has_configuration_and_weights(self, client: HubClient) -> None:
        folder = client.fetch(self.model)
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert "config.json" in files
        assert any(name.endswith(".safetensors") for name in files)
        assert set(client.files(self.model)) <= files

    def test_fetching_again_gives_the_same(self, client: HubClient) -> None:
        contents = [{path.name: path.read_bytes() for path in client.fetch(self.model).iterdir() if path.is_file()}
                    for _ in range(2)]
        assert contents[0] == contents[1]
        assert client.sha256(self.model) == client.sha256(self.model)

    def test_the_digest_is_of_the_weights(self, client: HubClient) -> None:
        assert len(client.sha256(self.model)) == 64
        assert int(client.sha256(self.model), 16) >= 0

    def test_what_can_be_fetched_is_found(self, client: HubClient) -> None:
        client.find(self.model)

    @pytest.mark.parametrize("verb", ["find", "fetch", "sha256", "files"])
    def test_an_unknown_model_is_refused_by_name(self, client: HubClient, verb: str) -> None:
        with pytest.raises(BackendError, match=self.unknown_model):
            getattr(client, verb)(self.unknown_model)

    def test_what_is_published_can_be_fetched(self, client: HubClient, tmp_path: Path) -> None:
        if not self.publishes:
            pytest.skip(f"{type(client).__name__} publishes nothing")
        folder, name = _folder(tmp_path / "out", b"one"), self.published(tmp_path)
        assert client.publish(name, folder, message="first")
        again = client.fetch(name)
        assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
        assert set(client.files(name)) >= {"config.json", "model.safetensors"}
        first = client.sha256(name)
        client.publish(name, _folder(tmp_path / "other", b"two"), message="second")
        assert client.sha256(name) != first


def _folder(folder: Path, weights: bytes) -> Path:
    folder.mkdir()
    header = b'{"__metadata__":{"note":"' + hashlib.sha256(weights).hexdigest().encode() + b'"}}'
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder

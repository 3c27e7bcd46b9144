"""The laws of hub clients: subclass `HubLaws`, define `hub`, and run pytest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kitchen.backend.edited_files import sign_card
from kitchen.errors import BackendError
from kitchen.ports.hub import HubClient

METHODS: dict[str, Callable[[HubClient, str], object]] = {
    "find": lambda hub, model: hub.find(model),
    "fetch": lambda hub, model: hub.fetch(model),
    "file": lambda hub, model: hub.file(model, "config.json"),
    "files": lambda hub, model: hub.files(model),
    "info": lambda hub, model: hub.info(model),
    "sha256": lambda hub, model: hub.sha256(model),
}


class HubLaws:
    """A model is a folder with a digest of its weights; a published one can be fetched."""

    model = "fake/bigram"  # one that the hub has
    unknown_model = "no-such-owner/no-such-model"
    malformed_model = ""  # a name that no model can have
    # True: names are looked up over a network, so that `find` checks their form only
    remote = False
    publishes = True  # whether the hub accepts models

    def hub(self, tmp_path: Path) -> HubClient:
        """Return the adapter under test, which has `model`."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which adapter the laws are for:\n"
            "    model = ...  # the name of one that the hub has\n"
            "    def hub(self, tmp_path: Path) -> HubClient:\n"
            "        return MyHub(...)"
        )

    def published(self, tmp_path: Path) -> str:
        """Return a name to publish under; override it where names are paths."""
        return "mine/tiny"

    @pytest.fixture
    def client(self, tmp_path: Path) -> HubClient:
        return self.hub(tmp_path)

    def test_a_fetched_model_has_configuration_and_weights(self, client: HubClient) -> None:
        folder = client.fetch(self.model)
        files = {
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        }
        assert "config.json" in files
        assert any(name.endswith(".safetensors") for name in files)
        assert set(client.files(self.model)) <= files
        assert list(client.files(self.model)) == sorted(client.files(self.model))

    def test_fetching_again_gives_the_same(self, client: HubClient) -> None:
        first = _contents(client.fetch(self.model))
        assert _contents(client.fetch(self.model)) == first
        assert client.sha256(self.model) == client.sha256(self.model)

    def test_a_single_file_equals_that_of_the_folder(self, client: HubClient) -> None:
        alone = client.file(self.model, "config.json").read_bytes()
        assert alone == (client.fetch(self.model) / "config.json").read_bytes()
        assert client.file(self.model, "config.json").read_bytes() == alone

    def test_a_missing_file_is_refused_by_name(self, client: HubClient) -> None:
        with pytest.raises(BackendError, match=r"confg\.json.*config\.json"):
            client.file(self.model, "confg.json")

    def test_the_digest_is_of_the_weights(self, client: HubClient) -> None:
        digest, folder = hashlib.sha256(), client.fetch(self.model)
        for path in client.files(self.model):
            if "/" not in path and path.endswith(".safetensors"):
                digest.update((folder / path).read_bytes())
        assert client.sha256(self.model) == digest.hexdigest()

    def test_info_matches_the_files(self, client: HubClient) -> None:
        info, folder = client.info(self.model), client.fetch(self.model)
        assert info.name == self.model
        assert info.size in (
            None,
            sum((folder / path).stat().st_size for path in client.files(self.model)),
        )
        assert info == client.info(self.model)

    def test_a_model_that_can_be_fetched_is_found(self, client: HubClient) -> None:
        client.find(self.model)

    @pytest.mark.parametrize("method", METHODS)
    def test_an_unknown_model_is_refused_by_name(self, client: HubClient, method: str) -> None:
        if self.remote and method == "find":
            client.find(self.unknown_model)  # no error: `find` makes no request
            return
        with pytest.raises(BackendError, match=self.unknown_model):
            METHODS[method](client, self.unknown_model)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_malformed_name_is_refused(self, client: HubClient, method: str) -> None:
        with pytest.raises(BackendError, match=repr(self.malformed_model)):
            METHODS[method](client, self.malformed_model)

    def test_a_published_model_can_be_fetched(self, client: HubClient, tmp_path: Path) -> None:
        self._needs_publishing(client)
        folder, name = _folder(tmp_path / "out", b"one"), self.published(tmp_path)
        assert client.publish(name, folder, message="first")
        fetched = client.fetch(name)
        weights = (folder / "model.safetensors").read_bytes()
        assert (fetched / "model.safetensors").read_bytes() == weights
        assert set(client.files(name)) >= {"config.json", "model.safetensors"}
        first = client.sha256(name)
        client.publish(name, _folder(tmp_path / "other", b"two"), message="second")
        assert client.sha256(name) != first

    def test_publishing_twice_changes_nothing(self, client: HubClient, tmp_path: Path) -> None:
        self._needs_publishing(client)
        folder, name = _folder(tmp_path / "out", b"one"), self.published(tmp_path)
        where = client.publish(name, folder, message="first")
        before = client.info(name), client.sha256(name), client.files(name)
        assert client.publish(name, folder, message="again") == where
        assert (client.info(name), client.sha256(name), client.files(name)) == before

    @pytest.mark.parametrize("path", ["README.md", "LICENSE", "LICENCE.txt"])
    def test_an_edited_card_or_licence_is_kept(
        self, client: HubClient, tmp_path: Path, path: str
    ) -> None:
        self._needs_publishing(client)
        folder, name = _folder(tmp_path / "out", b"one"), self.published(tmp_path)
        (folder / path).write_text("# My own words")
        client.publish(name, folder, message="by hand")
        (folder / path).write_text(sign_card("# Generated"))
        client.publish(name, folder, message="generated")
        assert client.file(name, path).read_text() == "# My own words"
        client.publish(name, folder, message="replaced", replace_card=True)
        assert client.file(name, path).read_text() == sign_card("# Generated")

    def test_a_generated_card_is_replaced(self, client: HubClient, tmp_path: Path) -> None:
        self._needs_publishing(client)
        folder, name = _folder(tmp_path / "out", b"one"), self.published(tmp_path)
        for text in ("# First", "# Second"):
            (folder / "README.md").write_text(sign_card(text))
            client.publish(name, folder, message=text)
            assert client.file(name, "README.md").read_text() == sign_card(text)

    def test_a_link_out_of_the_folder_is_not_published(
        self, client: HubClient, tmp_path: Path
    ) -> None:
        self._needs_publishing(client)
        (tmp_path / "private.txt").write_text("mine")
        folder = _folder(tmp_path / "out", b"one")
        (folder / "chat_template.jinja").symlink_to(tmp_path / "private.txt")
        with pytest.raises(BackendError, match=r"chat_template\.jinja is a symbolic link"):
            client.publish(self.published(tmp_path), folder, message="leaks")

    def test_an_empty_folder_is_not_published(self, client: HubClient, tmp_path: Path) -> None:
        self._needs_publishing(client)
        (tmp_path / "empty").mkdir()
        with pytest.raises(BackendError, match="no files"):
            client.publish(self.published(tmp_path), tmp_path / "empty", message="nothing")

    def _needs_publishing(self, client: HubClient) -> None:
        if not self.publishes:
            pytest.skip(f"{type(client).__name__} publishes nothing")


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _folder(folder: Path, weights: bytes) -> Path:
    folder.mkdir()
    header = b'{"__metadata__":{"note":"' + hashlib.sha256(weights).hexdigest().encode() + b'"}}'
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder

"""The Hugging Face hub obeys the laws of its port, with a server on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.fake.hub import FakeHub
from adapters.hf.hub import HfHub
from kitchen.testing.hub import HubLaws
from tests.support.hub_fixtures import hub_server  # noqa: F401
from tests.support.hub_server import HubServer


class TestHfHub(HubLaws):
    model = "owner/tiny"
    remote = True

    @pytest.fixture(autouse=True)
    def _server(self, hub_server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
        monkeypatch.setenv("HF_TOKEN", "hf_loopback_write")
        hub_server.repository(
            "owner/tiny",
            {
                "config.json": "{}",
                "model-2.safetensors": b"two",
                "model-1.safetensors": b"one",
                "onnx/model.safetensors": b"not the model",
                "pytorch_model.bin": b"pickled",
                "README.md": "---\nlicense: mit\n---\n",
            },
        )

    def hub(self, tmp_path: Path) -> HfHub:
        return HfHub(FakeHub(), timeout=2)


class TestPrefixedNames(HubLaws):
    """All methods pass names with a prefix on to the wrapped hub."""

    model = "fake:bigram"
    unknown_model = "fake:no-such-model"
    malformed_model = "fake:"

    def hub(self, tmp_path: Path) -> HfHub:
        return HfHub(
            FakeHub({"fake:bigram": {"config.json": b"{}", "model.safetensors": b"weights"}})
        )

    def published(self, tmp_path: Path) -> str:
        return "fake:mine"

"""A Hub on loopback, and clients that go nowhere else."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.hf.server import HubServer


def pytest_configure(config: pytest.Config) -> None:
    """`huggingface_hub` itself gives httpx2 the bytes of a commit in a way that is no longer liked."""
    config.addinivalue_line(
        "filterwarnings", "ignore:Use 'content=<...>':DeprecationWarning:httpx2._models"
    )


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub of this test's own: `huggingface_hub` and `datasets` of this process and of its
    children go to it.

    `huggingface_hub.constants` and `datasets.config` are read from the environment at import, and
    something may have imported them; so they are set as well. Nothing else on this machine is
    asked, and no cache but one under tmp_path is touched. Xet, whose storage this hub does not
    have, is off, and large files go the LFS way.
    """
    hub, data = (
        importlib.import_module(name) for name in ("huggingface_hub.constants", "datasets.config")
    )
    server = HubServer()
    home = tmp_path / "huggingface"
    switches = {
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    for name, value in {"HF_ENDPOINT": server.url, "HF_HOME": str(home), **switches}.items():
        monkeypatch.setenv(name, value)
    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_HUB_OFFLINE",
        "HF_HUB_CACHE",
        "HF_DATASETS_CACHE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, setting in {
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
    }.items():
        monkeypatch.setattr(hub, name, setting)
    for name, setting in {
        "HF_ENDPOINT": server.url,
        "HUB_DATASETS_URL": server.url + "/datasets/{repo_id}/resolve/{revision}/{path}",
        "HF_CACHE_HOME": str(home),
        "HF_DATASETS_CACHE": home / "datasets",
        "DOWNLOADED_DATASETS_PATH": str(home / "datasets" / "downloads"),
        "EXTRACTED_DATASETS_PATH": str(home / "datasets" / "downloads" / "extracted"),
        "HF_MODULES_CACHE": str(home / "modules"),
        "HF_UPDATE_DOWNLOAD_COUNTS": False,
    }.items():
        monkeypatch.setattr(data, name, setting)
    yield server
    server.unplug()

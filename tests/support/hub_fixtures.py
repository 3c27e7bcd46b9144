"""Fixtures with a Hugging Face Hub on loopback, for tests that import them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub_server import HubServer

UNSET = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_HUB_OFFLINE",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
)


def environment(url: str, home: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


def hub_constants(url: str, home: Path) -> dict[str, Any]:
    """Return constants of `huggingface_hub` as it reads them from the environment."""
    return {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
    }


def dataset_settings(url: str, home: Path) -> dict[str, Any]:
    """Return settings of `datasets` as it reads them from the environment."""
    return {
        "HF_ENDPOINT": url,
        "HUB_DATASETS_URL": url + "/datasets/{repo_id}/resolve/{revision}/{path}",
        "HF_CACHE_HOME": str(home),
        "HF_DATASETS_CACHE": home / "datasets",
        "DOWNLOADED_DATASETS_PATH": str(home / "datasets" / "downloads"),
        "EXTRACTED_DATASETS_PATH": str(home / "datasets" / "downloads" / "extracted"),
        "HF_MODULES_CACHE": str(home / "modules"),
        "HF_UPDATE_DOWNLOAD_COUNTS": False,
    }


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub for one test, which `huggingface_hub` and `datasets` use in this and child processes.

    `huggingface_hub.constants` and `datasets.config` are read from the environment at import, and
    something may have imported them already; so they are set as well. No other server is used, and
    no cache but one under tmp_path. Xet, whose storage this hub does not have, is off, and large
    files use LFS.
    """
    # imported first, so that what they read from the environment outlives this test
    hub = importlib.import_module("huggingface_hub.constants")
    data = importlib.import_module("datasets.config")
    server, home = HubServer(), tmp_path / "huggingface"
    for name, value in environment(server.url, home).items():
        monkeypatch.setenv(name, value)
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    for name, setting in hub_constants(server.url, home).items():
        monkeypatch.setattr(hub, name, setting)
    for name, setting in dataset_settings(server.url, home).items():
        monkeypatch.setattr(data, name, setting)
    yield server
    server.unplug()


@pytest.fixture
def go_offline(hub_server: HubServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that acts as HF_HUB_OFFLINE=1 at the start of the process."""
    return lambda: monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def no_default_hub(hub_server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default endpoint be an address where nothing listens."""
    for constant in ("huggingface_hub.constants.ENDPOINT", "datasets.config.HF_ENDPOINT"):
        monkeypatch.setattr(constant, "http://127.0.0.1:1")

"""The API key that clients of these tests bring."""

from __future__ import annotations

import pytest

from tests.support.tinker_server import KEY


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")

"""A folder for trackio that all tests of a session share: it reads TRACKIO_DIR once."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def trackio_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path_factory.getbasetemp() / "trackio"))
